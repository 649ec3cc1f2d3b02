"""Executes its arguments in a process where set_mempolicy answers EPERM, as a container's seccomp filter does."""

import ctypes
import os
import struct
import sys

NUMBER = {"x86_64": 238, "aarch64": 237}[os.uname().machine]
# load the number; if it is not ours skip one; return EPERM; allow (linux/filter.h, linux/seccomp.h)
FILTER = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBER), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in FILTER))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(FILTER), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program):
    sys.exit(f"no seccomp here: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606
