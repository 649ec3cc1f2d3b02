"""Makes one CUDA context on the only visible device and holds it until standard input closes.

Standard library only; run as ``python -I -S context_child.py``. Prints ``held``, or ends with 1 and the refused call.
"""

from __future__ import annotations

import ctypes
import sys


def main(library: str = "libcuda.so.1") -> int:
    """0 after the context was held; 1 when there is no driver or it refuses, such as a GPU that another has alone."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        return _refused("loading the driver", str(error))
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for name, arguments in (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
    ):
        code = getattr(cuda, name)(*arguments)
        if code:
            return _refused(name, f"CUDA error {code}")
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()
    return 0


def _refused(what: str, why: str) -> int:
    sys.stderr.write(f"{what}: {why}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
