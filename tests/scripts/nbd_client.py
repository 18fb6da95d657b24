# A libnbd client that tries every size of request and every mistake, with and without structured replies.
# The one argument is the address.
import errno
import os
import random
import sys

import nbd

URI = sys.argv[1]
BLOCK = 512


def connect(structured):
    handle = nbd.NBD()
    handle.set_request_structured_replies(structured)
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
    refused(errno.EINVAL, handle.pread, BLOCK, 100)
    refused(errno.EINVAL, handle.pwrite, b"x" * 100, 0)
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


def wait(handle, cookies):
    while cookies:
        assert handle.poll(20000) != 0, "nothing happens"
        cookies = [cookie for cookie in cookies if not handle.aio_command_completed(cookie)]


def many_at_once(handle):
    places = [65536 * index for index in range(256)]
    written = {place: os.urandom(BLOCK * random.randrange(1, 129)) for place in places}
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
        assert handle.get_block_size(nbd.SIZE_MINIMUM) == BLOCK
        mistakes(handle, size)
        sizes(handle, size, structured)
        zeroes(handle, size)
        many_at_once(handle)
        handle.shutdown()
    print("all passed")


main()
