"""NVML behind a small interface, so that tests bring their own; the driver's library is loaded only when asked for."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")

_MASK_WORDS = 64  # 4096 CPUs or nodes
_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_MIG_PROFILE = re.compile(r"MIG (\S+)$")


class NvmlError(Exception):
    """NVML refused a question; the text is its own."""


@dataclass(frozen=True)
class Memory:
    """``reserved_bytes`` is the driver's own, not part of ``used_bytes``."""

    total_bytes: int
    used_bytes: int
    reserved_bytes: int = 0


@dataclass(frozen=True)
class Process:
    """``pid`` as the driver numbers it; ``used_bytes`` None: not told."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True)
class NvLink:
    """One active link; ``remote_bus_id`` as NVML writes it, None: not told."""

    remote: Literal["gpu", "switch", "unknown"]
    remote_bus_id: str | None


@dataclass(frozen=True)
class MigFacts:
    index: int
    uuid: str
    profile: str | None
    memory: Memory
    processes: tuple[Process, ...]


class Device(Protocol):
    """One GPU. Every method may raise NvmlError."""

    def uuid(self) -> str: ...
    def name(self) -> str: ...
    def pci_bus_id(self) -> str: ...
    def compute_capability(self) -> str: ...
    def memory(self) -> Memory: ...
    def processes(self) -> tuple[Process, ...]: ...
    def utilisation_percent(self) -> int: ...
    def compute_mode(self) -> str: ...
    def mig(self) -> tuple[MigFacts, ...] | None: ...
    def cpus(self) -> tuple[int, ...]: ...
    def numa_nodes(self) -> tuple[int, ...]: ...
    def own_numa_node(self) -> int: ...
    def nvlinks(self) -> tuple[NvLink, ...]: ...


class Nvml(Protocol):
    """The driver's management library. Every method may raise NvmlError."""

    def driver_version(self) -> str: ...
    def cuda_version(self) -> str: ...
    def count(self) -> int: ...
    def device(self, index: int) -> Device: ...
    def ancestor(self, a: int, b: int) -> str: ...
    def peers_over_nvlink(self, a: int, b: int) -> bool: ...
    def close(self) -> None: ...


def load() -> Nvml:
    """NVML of this machine, initialised.

    Raises: NvmlError when there is no driver library, or it can't talk to the driver.
    """
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NvmlError("no NVIDIA driver library (libnvidia-ml.so.1) is installed") from error
    import pynvml  # noqa: PLC0415 - takes 25 ms, for nothing where there is no driver

    return PyNvml(pynvml)


class PyNvml:
    """``Nvml`` by the nvidia-ml-py module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._ask("nvmlInit")

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return getattr(self._module, function)(*arguments)
        except self._module.NVMLError as error:
            raise NvmlError(str(error)) from error

    def driver_version(self) -> str:
        return _text(self._ask("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str:
        number = int(self._ask("nvmlSystemGetCudaDriverVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def count(self) -> int:
        return int(self._ask("nvmlDeviceGetCount"))

    def device(self, index: int) -> Device:
        return _PyDevice(self._ask, self._module, self._handle(index))

    def _handle(self, index: int) -> Any:
        return self._ask("nvmlDeviceGetHandleByIndex", index)

    def ancestor(self, a: int, b: int) -> str:
        level = int(self._ask("nvmlDeviceGetTopologyCommonAncestor", self._handle(a), self._handle(b)))
        if level not in _ANCESTORS:
            raise NvmlError(f"topology level {level} is unknown")
        return _ANCESTORS[level]

    def peers_over_nvlink(self, a: int, b: int) -> bool:
        what = self._module.NVML_P2P_CAPS_INDEX_NVLINK
        status = self._ask("nvmlDeviceGetP2PStatus", self._handle(a), self._handle(b), what)
        return bool(status == self._module.NVML_P2P_STATUS_OK)

    def close(self) -> None:
        self._ask("nvmlShutdown")


class _PyDevice:
    def __init__(self, ask: Callable[..., Any], module: Any, handle: Any) -> None:
        self._call = ask
        self._module = module
        self._handle = handle

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._call(function, self._handle, *arguments)

    def uuid(self) -> str:
        return _text(self._ask("nvmlDeviceGetUUID"))

    def name(self) -> str:
        return _text(self._ask("nvmlDeviceGetName"))

    def pci_bus_id(self) -> str:
        return _text(self._ask("nvmlDeviceGetPciInfo").busId)

    def compute_capability(self) -> str:
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability")
        return f"{major}.{minor}"

    def memory(self) -> Memory:
        return _memory(self._ask, self._module)

    def processes(self) -> tuple[Process, ...]:
        return _processes(self._ask)

    def utilisation_percent(self) -> int:
        return int(self._ask("nvmlDeviceGetUtilizationRates").gpu)

    def compute_mode(self) -> str:
        mode = int(self._ask("nvmlDeviceGetComputeMode"))
        return _COMPUTE_MODES.get(mode, str(mode))

    def mig(self) -> tuple[MigFacts, ...] | None:
        if not self._ask("nvmlDeviceGetMigMode")[0]:
            return None
        most = int(self._ask("nvmlDeviceGetMaxMigDeviceCount"))
        handles = ((index, _or_none(self._mig_handle, index)) for index in range(most))
        return tuple(self._mig_facts(index, handle) for index, handle in handles if handle is not None)

    def _mig_handle(self, index: int) -> Any:
        return self._ask("nvmlDeviceGetMigDeviceHandleByIndex", index)

    def _mig_facts(self, index: int, handle: Any) -> MigFacts:
        slice_ = _PyDevice(self._call, self._module, handle)
        profile = _MIG_PROFILE.search(_or_none(slice_.name) or "")
        return MigFacts(
            index=index,
            uuid=slice_.uuid(),
            profile=profile[1] if profile else None,
            memory=slice_.memory(),
            processes=_or_none(slice_.processes) or (),
        )

    def cpus(self) -> tuple[int, ...]:
        return bits(self._ask("nvmlDeviceGetCpuAffinity", _MASK_WORDS))

    def numa_nodes(self) -> tuple[int, ...]:
        scope = self._module.NVML_AFFINITY_SCOPE_NODE
        return bits(self._ask("nvmlDeviceGetMemoryAffinity", _MASK_WORDS, scope))

    def own_numa_node(self) -> int:
        return int(self._ask("nvmlDeviceGetNumaNodeId"))

    def nvlinks(self) -> tuple[NvLink, ...]:
        links = (_or_none(self._nvlink, index) for index in range(self._module.NVML_NVLINK_MAX_LINKS))
        return tuple(link for link in links if link is not None)

    def _nvlink(self, index: int) -> NvLink | None:
        if not self._ask("nvmlDeviceGetNvLinkState", index):
            return None
        kind = _or_none(self._ask, "nvmlDeviceGetNvLinkRemoteDeviceType", index)
        remote = _or_none(self._ask, "nvmlDeviceGetNvLinkRemotePciInfo", index)
        names: dict[Any, Literal["gpu", "switch"]] = {
            self._module.NVML_NVLINK_DEVICE_TYPE_GPU: "gpu",
            self._module.NVML_NVLINK_DEVICE_TYPE_SWITCH: "switch",
        }
        return NvLink(names.get(kind, "unknown"), _text(remote.busId) if remote else None)


def bits(words: Iterable[int]) -> tuple[int, ...]:
    """Numbers of the set bits in a mask of 64-bit words, lowest first."""
    return tuple(at * 64 + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _or_none(question: Callable[..., T], *arguments: Any) -> T | None:
    try:
        return question(*arguments)
    except NvmlError:
        return None


def _memory(ask: Callable[..., Any], module: Any) -> Memory:
    """Memory with the driver's own part apart, which only the second version of the call tells."""
    version = getattr(module, "nvmlMemory_v2", None)
    info = _or_none(ask, "nvmlDeviceGetMemoryInfo", version) if version else None
    if info is not None:
        return Memory(int(info.total), int(info.used), int(info.reserved))
    info = ask("nvmlDeviceGetMemoryInfo")
    return Memory(int(info.total), int(info.used))


def _processes(ask: Callable[..., Any]) -> tuple[Process, ...]:
    """Processes with a context: compute ones must be told, graphics ones may not be."""
    compute = ask("nvmlDeviceGetComputeRunningProcesses")
    graphics = _or_none(ask, "nvmlDeviceGetGraphicsRunningProcesses") or ()
    found = {entry.pid: entry.usedGpuMemory for entry in (*graphics, *compute)}
    return tuple(Process(pid, used) for pid, used in sorted(found.items()))
