"""Runs a kernel on every GPU that CUDA shows, by the driver's library alone. Run as a file; standard library only.

Writes a JSON line per GPU as soon as it is done, so that one that hangs is known by the line that is missing.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

COUNT = 256
ALLOCATION_BYTES = 64 << 20
# Every thread writes three times its number plus one. PTX of an old version: any driver and GPU here translates it.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry mark(.param .u64 out)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %tid.x;
    mad.lo.u32 %r2, %r1, 3, 1;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r2;
    ret;
}
"""


class DriverError(Exception):
    """A call that the driver refused."""


class Driver:
    """The CUDA driver library; every call raises DriverError unless it succeeds."""

    def __init__(self, library: str) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(f"{library} cannot be loaded: {error}") from error

    def __call__(self, name: str, *arguments: Any) -> None:
        function: Callable[..., int] = getattr(self._library, name)
        status = function(*arguments)
        if status != 0:
            raise DriverError(f"{name} failed: {self._text(status)}")

    def _text(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return f"{(text.value or b'unknown').decode(errors='replace')} ({status})"


def count(cuda: Driver) -> int:
    """How many GPUs CUDA shows."""
    cuda("cuInit", 0)
    found = ctypes.c_int()
    cuda("cuDeviceGetCount", ctypes.byref(found))
    return found.value


def try_gpu(cuda: Driver, index: int) -> dict[str, Any]:
    """What became of an allocation and a kernel on one GPU."""
    try:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        cuda("cuDeviceGet", ctypes.byref(device), index)
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        cuda("cuCtxSetCurrent", context)
        wrong = _run(cuda)
        cuda("cuDevicePrimaryCtxRelease_v2", device)
    except DriverError as error:
        return {"gpu": index, "ok": False, "detail": str(error)}
    if wrong:
        return {"gpu": index, "ok": False, "detail": f"the kernel wrote {wrong} of {COUNT} numbers wrong"}
    return {"gpu": index, "ok": True, "detail": f"{ALLOCATION_BYTES >> 20} MiB allocated, kernel right"}


def _run(cuda: Driver) -> int:
    """How many numbers the kernel got wrong."""
    memory, module, function = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(ALLOCATION_BYTES))
    cuda("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), ctypes.c_size_t(ALLOCATION_BYTES))
    cuda("cuModuleLoadData", ctypes.byref(module), PTX)
    cuda("cuModuleGetFunction", ctypes.byref(function), module, b"mark")
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    cuda("cuLaunchKernel", function, 1, 1, 1, COUNT, 1, 1, 0, None, arguments, None)
    cuda("cuCtxSynchronize")
    result = (ctypes.c_uint32 * COUNT)()
    cuda("cuMemcpyDtoH_v2", result, memory, ctypes.c_size_t(ctypes.sizeof(result)))
    cuda("cuModuleUnload", module)
    cuda("cuMemFree_v2", memory)
    return sum(value != at * 3 + 1 for at, value in enumerate(result))


def main(library: str) -> int:
    """Writes a line per GPU; the exit status is 0 when the driver could be asked."""
    try:
        cuda = Driver(library)
        found = count(cuda)
    except DriverError as error:
        _say({"gpu": None, "ok": False, "detail": str(error)})
        return 1
    _say({"gpus": found})
    for index in range(found):
        _say(try_gpu(cuda, index))
    return 0


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "libcuda.so.1"))
