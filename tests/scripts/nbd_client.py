# A libnbd client that tries every size of request and every mistake, with and without structured replies.
# The arguments are the address and the size of a block.
import errno
import os
import random
import sys

import nbd

URI = sys.argv[1]
BLOCK = int(sys.argv[2])


def connect(structured):
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.connect_uri(URI)
    # Mistakes are to reach the server.
    handle.set_strict_mode(0)
    assert handle.get_structured_replies_negotiated() == structured
    return handle


def refused(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, (error.string, number)
        return
    raise AssertionError("%s%r was not refused" % (call.__name__, arguments))


def mistakes(handle, size):
    refused(errno.EINVAL, handle.pread, BLOCK, size)
    refused(errno.EINVAL, handle.pread, 2, size - 1)
    refused(errno.ENOSPC, handle.pwrite, b"xx", size - 1)
    refused(errno.ENOSPC, handle.pwrite, b"x" * 2 * BLOCK, size - BLOCK)
    refused(errno.ENOSPC, handle.zero, 2 * BLOCK, size - BLOCK)
    refused(errno.EINVAL, handle.trim, 2 * BLOCK, size - BLOCK)
    refused(errno.EINVAL, handle.zero, BLOCK, 0, nbd.CMD_FLAG_FAST_ZERO)
    refused(errno.EINVAL, handle.cache, BLOCK, 0)


def sizes(handle, size, structured):
    pieces = [16 << 10, 256 << 10, 2 << 20]
    for length in [BLOCK, 5 << 20, 32 << 20] + pieces + [piece + BLOCK for piece in pieces]:
        data = os.urandom(length)
        offset = BLOCK * random.randrange(0, (size - length) // BLOCK + 1)
        handle.pwrite(data, offset, random.choice([0, nbd.CMD_FLAG_FUA]))
        assert handle.pread(length, offset) == data, length
        if structured:
            assert handle.pread(length, offset, nbd.CMD_FLAG_DF) == data, length
    handle.flush()


def zeroes(handle, size):
    ones, zeros = b"\xff", b"\0"
    handle.pwrite(ones * (1 << 20), 0)
    handle.zero(BLOCK, BLOCK, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    assert handle.pread(4 * BLOCK, 0) == ones * BLOCK + zeros * BLOCK + ones * 2 * BLOCK
    handle.zero(1 << 20, 0)
    assert handle.pread(1 << 20, 0) == zeros * (1 << 20)
    handle.trim(1 << 20, 0, nbd.CMD_FLAG_FUA)
    handle.trim(size, 0)
    handle.zero(size, 0)


def anywhere(handle, size):
    """Requests that begin and end in the middle of blocks, beside a copy of what they should have made."""
    length = 300 * BLOCK
    expected = bytearray(os.urandom(length))
    handle.pwrite(bytes(expected), 0)
    for round in range(150):
        start = random.randrange(length)
        most = random.choice([3, BLOCK, 3 * BLOCK, length])
        part = min(random.randrange(1, most + 1), length - start)
        what = random.choice(["write", "write", "zero", "trim"])
        fua = random.choice([0, nbd.CMD_FLAG_FUA])
        if what == "write":
            data = os.urandom(part)
            handle.pwrite(data, start, fua)
            expected[start:start + part] = data
        elif what == "zero":
            handle.zero(part, start, fua | random.choice([0, nbd.CMD_FLAG_NO_HOLE]))
            expected[start:start + part] = bytes(part)
        else:
            handle.trim(part, start, fua)
            first, end = -(-start // BLOCK) * BLOCK, (start + part) // BLOCK * BLOCK
            if end > first:
                now = handle.pread(end - first, first)
                assert now == bytes(end - first) or now == expected[first:end], "what is trimmed is zeroes, or stays"
                expected[first:end] = now
        around = max(0, start - random.randrange(2 * BLOCK))
        there = min(length, start + part + random.randrange(2 * BLOCK)) - around
        flags = nbd.CMD_FLAG_DF if handle.get_structured_replies_negotiated() and round % 2 else 0
        assert handle.pread(there, around, flags) == expected[around:around + there], (what, start, part)
    assert handle.pread(length, 0) == expected
    data = os.urandom((32 << 20) - 1)
    handle.pwrite(data, 1)
    assert handle.pread(len(data), 1) == data
    handle.flush()


def allocation(handle, size):
    assert handle.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    one = nbd.CMD_FLAG_REQ_ONE
    for start, length, flags in [(0, size, 0), (1, size - 1, 0), (BLOCK + 1, 3, 0), (size - 1, 1, one)]:
        found = []

        def take(name, offset, entries, error):
            found.append((name, entries))

        handle.block_status(length, start, take, flags)
        assert [name for name, _ in found] == ["base:allocation"]
        lengths = found[0][1][::2]
        assert lengths and all(lengths) and sum(lengths) <= length, found
        assert len(lengths) == 1 or not flags
    refused(errno.EINVAL, handle.block_status, 1, size, lambda *arguments: 0)


def wait(handle, cookies):
    while cookies:
        assert handle.poll(20000) != 0, "nothing happens"
        cookies = [cookie for cookie in cookies if not handle.aio_command_completed(cookie)]


def many_at_once(handle):
    places = [65536 * index for index in range(256)]
    written = {place: os.urandom(BLOCK * random.randrange(1, 65536 // BLOCK + 1)) for place in places}
    wait(handle, [
        handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), place) for place, data in written.items()
    ])
    buffers = {place: nbd.Buffer(len(written[place])) for place in places}
    wait(handle, [handle.aio_pread(buffer, place) for place, buffer in buffers.items()])
    for place, buffer in buffers.items():
        assert buffer.to_bytearray() == written[place], place


def main():
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed, file=sys.stderr)
    random.seed(seed)
    for structured in (True, False):
        handle = connect(structured)
        size = handle.get_size()
        assert handle.can_multi_conn() and handle.can_fua() and handle.can_flush()
        assert handle.get_block_size(nbd.SIZE_MINIMUM) == 1
        mistakes(handle, size)
        sizes(handle, size, structured)
        zeroes(handle, size)
        many_at_once(handle)
        anywhere(handle, size)
        if structured:
            allocation(handle, size)
        else:
            refused(errno.EINVAL, handle.block_status, BLOCK, 0, lambda *arguments: 0)
        handle.shutdown()
    print("all passed")


main()
