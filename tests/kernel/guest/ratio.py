"""The table of ratio.sh: medians of each side, and the ratios of the turns.

ratio.py LANE FILE     lines of the file: who, depth, kind, IOPS, mean latency in microseconds
"""

import collections
import statistics
import sys

NAMES = {"randread": "read", "randwrite": "write"}


def main(lane, path):
    figures = collections.defaultdict(list)
    with open(path, encoding="ascii") as lines:
        for line in lines:
            who, depth, kind, iops, latency = line.split()
            figures[int(depth), kind, who].append((float(iops), float(latency)))
    print(f"{lane}, 4 KiB, null: ours against the kernel's target, medians; ratios turn by turn")
    print("| depth | kind | kernel IOPS | our IOPS | IOPS ratio (least, most) | latency ratio (least, most) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for depth, kind in sorted({key[:2] for key in figures}):
        theirs, ours = figures[depth, kind, "kernel"], figures[depth, kind, "ours"]
        columns = [str(depth), NAMES[kind]]
        columns += [f"{statistics.median(iops for iops, _ in side):.0f}" for side in (theirs, ours)]
        for index in (0, 1):
            ratios = [own[index] / other[index] for own, other in zip(ours, theirs)]
            columns.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})")
        print("| " + " | ".join(columns) + " |")


main(*sys.argv[1:])
