# A write that comes late: a proxy holds what a host sends, and cuts the host off. The host sends the write again,
# then a newer one, which is answered. Then the proxy lets go of what it held.
#
#   late.py ROUNDS IMAGE PORT=ADDRESS...
#
# It says "ready", and reads a line: the disk of the host, which uses it by way of the ports of this program. Each leads
# to the target at ADDRESS. Where there are two, they are cut in turns. IMAGE is what the target writes to. The last
# line says in how many rounds older data was in the block after the newer was answered.
import mmap
import os
import socket
import struct
import sys
import threading
import time

rounds, image = int(sys.argv[1]), sys.argv[2]
ways = [argument.split("=") for argument in sys.argv[3:]]


class Connection:
    def __init__(self, host, target):
        self.host, self.target = host, target
        self.held, self.holds, self.ended = [], False, False
        self.lock = threading.Lock()
        for end in (host, target):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self.to_target, daemon=True).start()
        threading.Thread(target=self.to_host, daemon=True).start()

    def to_target(self):
        try:
            while data := self.host.recv(1 << 20):
                with self.lock:
                    if self.holds:
                        self.held.append(data)
                        continue
                self.target.sendall(data)
        except OSError:
            pass
        if not self.holds:
            self.ended = True
            self.target.close()

    def to_host(self):
        try:
            while data := self.target.recv(1 << 20):
                if not self.holds:
                    self.host.sendall(data)
        except OSError:
            pass
        self.ended = True
        if not self.holds:
            self.host.close()

    def hold(self):
        with self.lock:
            self.holds = True

    def cut(self):
        try:
            self.host.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.host.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The host has given it up itself.
        self.host.close()

    def release(self):
        try:
            for data in self.held:
                self.target.sendall(data)
            time.sleep(0.3)  # The target may act on it, which must be seen to do nothing.
        except OSError:
            pass
        self.target.close()


class Way:
    def __init__(self, port, address):
        host, _, number = address.rpartition(":")
        self.address, self.connections = (host, int(number)), []
        self.listener = socket.create_server(("", int(port)), backlog=64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            host, _ = self.listener.accept()
            try:
                self.connections.append(Connection(host, socket.create_connection(self.address)))
            except OSError:
                host.close()

    def live(self):
        return sum(not (one.ended or one.holds) for one in self.connections)

    def hold(self):
        held = [one for one in self.connections if not (one.ended or one.holds)]
        for one in held:
            one.hold()
        return held


def block(text):
    page = mmap.mmap(-1, 4096)
    page[:] = text * (4096 // len(text))
    return page


def held_by(path, offset):
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(4096)


def wait_for(what):
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline, "in vain waited for"
        time.sleep(0.01)


def round_of(number, way, handle):
    """Whether the newer data are in the block, and how long the host waited; none if it used another way."""
    offset = 4096 * (number % 256)
    old, new = block(b"old%05d" % number), block(b"new%05d" % number)
    held = way.hold()
    first = threading.Thread(target=lambda: os.pwritev(handle, [old], offset))
    first.start()
    wait_for(lambda: not first.is_alive() or any(len(data) > 4096 for one in held for data in one.held))
    for one in held:
        one.cut()
    used = first.is_alive()
    began = time.monotonic()
    first.join()
    os.pwritev(handle, [new], offset)
    waited = time.monotonic() - began
    for one in held:
        one.release()
    return (held_by(image, offset) == bytes(new), waited) if used else None


# What uses the disk connects when the ports are there.
all_ways = [Way(port, address) for port, address in ways]
print("ready", flush=True)
handle = os.open(sys.stdin.readline().strip(), os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
results, number = [], 0
at_first = [way.live() for way in all_ways]
while len(results) < rounds:
    wait_for(lambda: all(way.live() >= count for way, count in zip(all_ways, at_first)))
    result = round_of(number, all_ways[number % len(all_ways)], handle)
    number += 1
    assert number <= 4 * rounds, "the host uses no way"
    if result:
        results.append(result)
undone = sum(not right for right, _ in results)
waits = sorted(waited for _, waited in results)
print("waited %.2f s, at most %.2f s" % (waits[len(waits) // 2], waits[-1]))
print("undone %d of %d" % (undone, rounds))
