# How long a disk answers nothing: small reads and writes past the cache, one after the other, in the last MiB of it.
#
#   gaps.py DISK FILE     SIGUSR1 begins anew; SIGUSR2 writes the longest time of a read and of a write since then to
#                         FILE, in milliseconds; SIGTERM ends
#
# An error of the disk ends it with 1.
import mmap
import os
import signal
import sys
import time

disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
size = os.lseek(disk, 0, os.SEEK_END)
page = mmap.mmap(-1, 4096)
longest = {"read": 0.0, "write": 0.0}
asked = []

for name in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    signal.signal(name, lambda number, frame: asked.append(number))


def note(text):
    with open(sys.argv[2] + ".new", "w") as file:
        file.write(text + "\n")
    os.rename(sys.argv[2] + ".new", sys.argv[2])


def timed(what, call, offset):
    began = time.monotonic()
    assert call(disk, [page], offset) == 4096
    longest[what] = max(longest[what], time.monotonic() - began)


note("begun")
count = 0
while True:
    while asked:
        number = asked.pop(0)
        if number == signal.SIGTERM:
            sys.exit(0)
        if number == signal.SIGUSR2:
            note(" ".join("%s %d ms" % (what, 1000 * took) for what, took in longest.items()))
        longest = {"read": 0.0, "write": 0.0}
    count += 1
    offset = size - (1 << 20) + 4096 * (count % 256)
    page[:8] = count.to_bytes(8, "little")
    timed("write", os.pwritev, offset)
    timed("read", os.preadv, offset)
    assert page[:8] == count.to_bytes(8, "little"), "older data"
    time.sleep(0.002)
