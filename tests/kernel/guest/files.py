# A file system in use: several processes make, write, cut, rename and remove files at random, each in a folder of its
# own, and know what every file should hold.
#
#   files.py use FOLDER BOOKS WORKERS STEPS     does so, compares, and writes down what there should be
#   files.py check FOLDER BOOKS                 compares with what was written down
#
# It does with few modules, since each takes its time under emulation.
import json
import os
import random
import sys
import zlib

BYTES_MAX = 256 << 10


class Worker:
    def __init__(self, folder, seed):
        self.folder, self.random = folder, random.Random(seed)
        # What each file should hold, by name; names that are links share their bytes.
        self.files, self.names = {}, 0
        os.mkdir(folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def new_name(self):
        self.names += 1
        return "%d-%s" % (self.names, "n" * self.random.randrange(60))

    def any_name(self):
        return self.random.choice(sorted(self.files))

    def make(self):
        name = self.new_name()
        with open(self.path(name), "wb"):
            self.files[name] = bytearray()
        self.write(name)

    def write(self, name=None):
        name = name or self.any_name()
        held = self.files[name]
        offset = self.random.randrange(len(held) + 8192)
        data = self.random.randbytes(self.random.randrange(1, 32 << 10))
        if offset + len(data) > BYTES_MAX:
            return
        with open(self.path(name), "r+b") as file:
            os.pwrite(file.fileno(), data, offset)
            if self.random.random() < 0.1:
                os.fsync(file.fileno())
        held.extend(bytes(max(0, offset - len(held))))
        held[offset : offset + len(data)] = data

    def cut(self):
        name = self.any_name()
        length = self.random.randrange(len(self.files[name]) + 4096)
        os.truncate(self.path(name), length)
        held = self.files[name]
        del held[length:]
        held.extend(bytes(length - len(held)))

    def allocate(self):
        name = self.any_name()
        held = self.files[name]
        length = self.random.randrange(1, 64 << 10)
        with open(self.path(name), "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, length)
        held.extend(bytes(max(0, length - len(held))))

    def rename(self):
        old, new = self.any_name(), self.new_name()
        os.rename(self.path(old), self.path(new))
        self.files[new] = self.files.pop(old)

    def link(self):
        old, new = self.any_name(), self.new_name()
        os.link(self.path(old), self.path(new))
        self.files[new] = self.files[old]

    def remove(self):
        name = self.any_name()
        os.unlink(self.path(name))
        del self.files[name]

    def folders(self):
        path = self.path("folder")
        for name in "abcd":
            os.makedirs(os.path.join(path, name, name))
        os.removedirs(os.path.join(path, "a", "a"))
        for name in "bcd":
            os.removedirs(os.path.join(path, name, name))

    def step(self):
        if not self.files:
            return self.make()
        makers, others = [self.make] * 3 + [self.write] * 6, [self.cut, self.allocate, self.rename]
        self.random.choice(makers + others + [self.link, self.remove, self.remove, self.folders])()

    def books(self):
        return {self.path(name): digest(bytes(held)) for name, held in self.files.items()}


def digest(data):
    return [len(data), zlib.crc32(data)]


def work(folder, seed, steps, notes):
    worker = Worker(folder, seed)
    for _ in range(steps):
        worker.step()
    while len(worker.files) < 2:
        worker.make()
    with open(notes, "w") as file:
        json.dump(worker.books(), file)


def compare(folder, books):
    found = {os.path.join(place, name) for place, _, names in os.walk(folder) for name in names}
    assert found == set(books), ("files that should not be, or are missing", found ^ set(books))
    for path, wanted in books.items():
        with open(path, "rb") as file:
            assert digest(file.read()) == wanted, path
    print("%d files are as they should be" % len(books))


def use(folder, notes, workers, steps):
    seed = random.randrange(1 << 32)
    print("seed %d" % seed, flush=True)
    for index in range(workers):
        if os.fork() == 0:
            work(os.path.join(folder, "worker%d" % index), seed + index, steps, "%s.%d" % (notes, index))
            os._exit(0)
    assert all(os.wait()[1] == 0 for _ in range(workers)), "a worker failed"
    books = {}
    for index in range(workers):
        with open("%s.%d" % (notes, index)) as file:
            books.update(json.load(file))
    assert len(books) > workers, "too few files to tell anything"
    return books


command, folder, notes = sys.argv[1:4]
if command == "use":
    books = use(folder, notes, int(sys.argv[4]), int(sys.argv[5]))
    os.spawnlp(os.P_WAIT, "sync", "sync", "-f", folder)
    compare(folder, books)
    with open(notes, "w") as file:
        json.dump(books, file)
else:
    with open(notes) as file:
        compare(folder, json.load(file))
