# Blocks of two volumes that carry a common clock, so that copies of both show whether they are of one instant.
#
#   clock.py load DISK DISK FILE    writes a time to one volume past the cache, waits until it is written, and writes it
#                                   to the other one, in two threads that begin with different volumes; until SIGTERM,
#                                   and then FILE has what was written. FILE.begun is there once both write
#   clock.py check DISK DISK FILE   whether copies of the volumes are of one instant
import json
import mmap
import os
import signal
import sys
import threading

BLOCK = 4096
what, disks, file = sys.argv[1], sys.argv[2:4], sys.argv[4]
ended = threading.Event()
clock, clock_lock = 0, threading.Lock()


def tick():
    global clock
    with clock_lock:
        clock += 1
        return clock


def order(thread):
    return (0, 1) if thread == 0 else (1, 0)


def write(thread, times):
    opened = [os.open(disk, os.O_RDWR | os.O_DIRECT) for disk in disks]
    block = mmap.mmap(-1, BLOCK)
    while not ended.is_set():
        time = tick()
        block[:8] = time.to_bytes(8, "little")
        for volume in order(thread):
            assert os.pwrite(opened[volume], block, thread * BLOCK) == BLOCK
        times.append(time)


def load():
    written = [[0], [0]]
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    threads = [threading.Thread(target=write, args=(thread, written[thread])) for thread in (0, 1)]
    for thread in threads:
        thread.start()
    while min(len(times) for times in written) < 20:
        ended.wait(0.05)
    open(file + ".begun", "w").close()
    ended.wait()
    for thread in threads:
        thread.join()
    with open(file, "w") as out:
        json.dump(written, out)


def check():
    with open(file) as known:
        written = json.load(known)
    for thread, times in enumerate(written):
        found = []
        for volume in order(thread):
            with open(disks[volume], "rb") as disk:
                disk.seek(thread * BLOCK)
                found.append(times.index(int.from_bytes(disk.read(8), "little")))
        print(f"thread {thread} had written {found[0]} and {found[1]} times of {len(times)}")
        if found[0] - found[1] not in (0, 1):
            sys.exit("the copies are not of one instant")


{"load": load, "check": check}[what]()
