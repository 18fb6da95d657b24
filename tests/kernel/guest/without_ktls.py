#!/usr/bin/env python3
"""Runs a program that cannot hand TLS to the kernel: TCP's option for that fails as where the kernel has no TLS.

    without_ktls.py PROGRAM [ARGUMENT...]

The kernel's own ends use its TLS meanwhile, so that it cannot be taken away from the whole machine."""

import ctypes
import errno
import os
import struct
import sys

SETSOCKOPT, SOL_TCP, TCP_ULP = 54, 6, 31
# Where a filter finds the number of the system call, and its second and third argument.
NUMBER, LEVEL, OPTION = 0, 24, 32
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.ENOENT
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

INSTRUCTIONS = (
    (LOAD, 0, 0, NUMBER),
    (JUMP_IF_EQUAL, 0, 5, SETSOCKOPT),
    (LOAD, 0, 0, LEVEL),
    (JUMP_IF_EQUAL, 0, 3, SOL_TCP),
    (LOAD, 0, 0, OPTION),
    (JUMP_IF_EQUAL, 0, 1, TCP_ULP),
    (RETURN, 0, 0, FAIL),
    (RETURN, 0, 0, ALLOW),
)


class Program(ctypes.Structure):
    _fields_ = [("instructions", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def main():
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in INSTRUCTIONS))
    program = Program(len(INSTRUCTIONS), ctypes.addressof(code))
    library = ctypes.CDLL(None, use_errno=True)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))):
        if library.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[1], sys.argv[1:])


main()
