"""Runs a program as on a kernel without the system calls that were added after Linux 4.18: they fail with ENOSYS.

On all architectures, the first of these calls has the number 424. The filter is inherited by all processes that the program
starts. Usage: old_kernel.py PROGRAM ARGS...
"""

import ctypes
import os
import struct
import sys

FIRST_MISSING = 424
ENOSYS = 38
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
PR_SET_NO_NEW_PRIVS = 38
# Of classic BPF: load the number of the call, compare it, and return a verdict.
LOAD, AT_LEAST, RETURN = 0x20, 0x35, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


class Program(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def instruction(code, if_true, if_false, value):
    return struct.pack("HBBI", code, if_true, if_false, value)


filters = (
    instruction(LOAD, 0, 0, 0)
    + instruction(AT_LEAST, 0, 1, FIRST_MISSING)
    + instruction(RETURN, 0, 0, ERRNO | ENOSYS)
    + instruction(RETURN, 0, 0, ALLOW)
)
memory = ctypes.create_string_buffer(filters, len(filters))
program = Program(len(filters) // 8, ctypes.addressof(memory))
prctl = ctypes.CDLL(None, use_errno=True).prctl
if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
):
    sys.exit(f"the filter was refused: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[1], sys.argv[1:])
