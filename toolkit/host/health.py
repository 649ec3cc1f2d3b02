"""What NVML says of the health of GPUs: ECC, row remapping, the fabric. Reads only; resets nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.host.nvml import NvmlError

FABRIC_COMPLETED, FABRIC_NOT_SUPPORTED = 3, 0  # nvml.h: nvmlGpuFabricState_t


@dataclass(frozen=True)
class GpuHealth:
    """One GPU. None: NVML does not tell. ``ecc_uncorrected`` since the driver was loaded; ``fabric``: in words."""

    index: int
    uuid: str | None = None
    bus_id: str | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    fabric: str | None = None
    fabric_ready: bool | None = None
    error: str | None = None


def read(module: Any) -> tuple[str | None, tuple[GpuHealth, ...]]:
    """The driver's version and the health of every GPU, by the nvidia-ml-py module.

    Raises: NvmlError when the driver cannot be talked to.
    """
    try:
        module.nvmlInit()
        try:
            count = module.nvmlDeviceGetCount()
            return _told(module, "nvmlSystemGetDriverVersion"), tuple(_gpu(module, at) for at in range(count))
        finally:
            module.nvmlShutdown()
    except module.NVMLError as error:
        raise NvmlError(str(error)) from error


def _gpu(module: Any, index: int) -> GpuHealth:
    try:
        handle = module.nvmlDeviceGetHandleByIndex(index)
    except module.NVMLError as error:
        return GpuHealth(index, error=str(error))
    rows = _told(module, "nvmlDeviceGetRemappedRows", handle)
    pci = _told(module, "nvmlDeviceGetPciInfo", handle)
    state, ready = _fabric(module, handle)
    return GpuHealth(
        index,
        _word(_told(module, "nvmlDeviceGetUUID", handle)),
        _word(getattr(pci, "busId", None)),
        _ecc(module, handle),
        None if rows is None else bool(rows[2]),
        None if rows is None else bool(rows[3]),
        state,
        ready,
    )


def _ecc(module: Any, handle: Any) -> int | None:
    uncorrected, volatile = module.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, module.NVML_VOLATILE_ECC
    found = _told(module, "nvmlDeviceGetTotalEccErrors", handle, uncorrected, volatile)
    return None if found is None else int(found)


def _fabric(module: Any, handle: Any) -> tuple[str | None, bool | None]:
    """The state of the NVLink fabric of a GPU; None, None: it is part of none, or nobody tells."""
    make: Callable[[], Any] | None = getattr(module, "c_nvmlGpuFabricInfo_t", None)
    if make is None:
        return None, None
    info = make()
    asked = _told(module, "nvmlDeviceGetGpuFabricInfo", handle, _reference(info))
    if asked is None and not getattr(info, "state", 0):
        return None, None
    state = int(info.state)
    if state == FABRIC_NOT_SUPPORTED:
        return None, None
    names = {1: "not started", 2: "in progress", 3: "completed"}
    return names.get(state, str(state)), state == FABRIC_COMPLETED and int(info.status) == 0


def _reference(info: Any) -> Any:
    import ctypes  # noqa: PLC0415  only where there is a GPU

    return ctypes.byref(info)


def _told(module: Any, name: str, *arguments: Any) -> Any:
    """The answer to one question; None where the GPU or driver has none."""
    try:
        return getattr(module, name)(*arguments)
    except (module.NVMLError, AttributeError):
        return None


def _word(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
