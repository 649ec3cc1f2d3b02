"""The smoke test: device nodes, a kernel on every GPU in a child with a time limit, and what NVML says of health."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from toolkit.files import parsed_object
from toolkit.host import health
from toolkit.host.health import GpuHealth
from toolkit.host.nvml import NvmlError

CHILD = Path(__file__).with_name("smoke_child.py")
LIMIT_S = 60.0  # a first context on 8 GPUs without persistence mode takes tens of seconds
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
KERNEL_LOG_BYTES = 4 << 20
# What the child may need of this machine; nothing else gets in.
INHERITED = ("LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")

State = Literal["ok", "fail", "unknown"]


@dataclass(frozen=True)
class Probe:
    """One thing that was tried. ``subject``: the GPU, or the host."""

    name: str
    subject: str
    state: State
    detail: str


@dataclass(frozen=True)
class Smoke:
    """Everything that was tried."""

    probes: tuple[Probe, ...]
    gpus: int

    @property
    def ok(self) -> bool:
        """Whether nothing failed; what nobody can tell is no failure, nor is a machine without GPUs by itself."""
        return not any(probe.state == "fail" for probe in self.probes)

    @property
    def summary(self) -> str:
        """One sentence about it all."""
        if not self.gpus:
            return "no GPU here: nothing to try. On a GPU node, check the driver or start the container with --gpus."
        bad = [probe for probe in self.probes if probe.state == "fail"]
        return f"{self.gpus} GPU(s), {len(bad)} failure(s)" if bad else f"{self.gpus} GPU(s), all fine"

    def document(self) -> dict[str, Any]:
        """The document of ``check --smoke --json``, less its schema number."""
        probes = [
            {"name": each.name, "subject": each.subject, "state": each.state, "detail": each.detail}
            for each in self.probes
        ]
        return {"ok": self.ok, "gpus": self.gpus, "summary": self.summary, "probes": probes}


def run(
    dev: Path = Path("/dev"),
    *,
    driver: str = "libcuda.so.1",
    nvml: Callable[[], Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    limit_s: float = LIMIT_S,
) -> Smoke:
    """What became of every probe on this machine."""
    nodes = tuple(device_nodes(dev))
    tried = tuple(kernels(driver, environ, limit_s))
    version, gpus, problem = _health(nvml or _module)
    shown = sum(1 for probe in tried if probe.name == "kernel" and probe.subject.startswith("GPU"))
    if not shown and not gpus and not nodes:
        return Smoke((*tried, *((problem,) if problem else ()), *_asked_for(environ)), 0)
    told = (Probe("nvml", "host", "ok", f"driver {version}, {len(gpus)} GPU(s)"),) if problem is None else (problem,)
    log = kernel_log(dev)
    states = [probe for gpu in gpus for probe in (*_state(gpu), _xid(gpu, log))]
    return Smoke((*nodes, *tried, *told, *states, *fabric(dev, gpus)), shown or len(gpus))


def _asked_for(environ: Mapping[str, str]) -> Iterator[Probe]:
    """A failure where the container was to have GPUs."""
    asked = environ.get("NVIDIA_VISIBLE_DEVICES")
    if asked and asked not in {"void", "none"}:
        yield Probe("container", "host", "fail", f"NVIDIA_VISIBLE_DEVICES={asked} asks for GPUs, none is here")


def device_nodes(dev: Path) -> Iterator[Probe]:
    """Device nodes of the driver; none at all: no driver here."""
    cards = sorted(path for path in dev.glob("nvidia[0-9]*"))
    wanted = [dev / "nvidiactl", dev / "nvidia-uvm"]
    if not cards and not any(path.exists() for path in wanted):
        return
    for path in (*wanted, *cards):
        if not path.exists():
            yield Probe("device node", "host", "fail", f"{path} is missing (nvidia-modprobe -u -c=0 makes it)")
        elif not os.access(path, os.R_OK | os.W_OK):
            yield Probe("device node", "host", "fail", f"{path} may not be opened by this user")
        else:
            yield Probe("device node", "host", "ok", str(path))


def kernels(driver: str, environ: Mapping[str, str], limit_s: float) -> Iterator[Probe]:
    """An allocation and a kernel on every GPU that CUDA shows, in a child that is ended at the limit."""
    env = {name: environ[name] for name in INHERITED if name in environ}
    argv = [sys.executable, "-I", str(CHILD), driver]
    try:
        done = subprocess.run(
            argv, env={**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
        output, late = done.stdout, False
    except subprocess.TimeoutExpired as error:
        output, late = error.stdout or b"", True
    yield from _told(output, late, limit_s)


def _told(output: bytes, late: bool, limit_s: float) -> Iterator[Probe]:
    lines = [line for text in output.splitlines() if (line := parsed_object(text)) is not None]
    expected = next((line["gpus"] for line in lines if "gpus" in line), None)
    found = [line for line in lines if "ok" in line]
    for line in found:
        subject = "host" if line["gpu"] is None else f"GPU {line['gpu']}"
        # Without a driver library there is nothing to fail: the caller says that there is no GPU.
        state: State = "ok" if line["ok"] else "unknown" if line["gpu"] is None else "fail"
        yield Probe("kernel", subject, state, str(line["detail"]))
    done = sum(1 for line in found if line["gpu"] is not None)
    if late or (expected is not None and done < expected):
        how = f"no answer in {limit_s:.0f} s" if late else "the child ended without an answer"
        yield Probe("kernel", f"GPU {done}" if expected else "host", "fail", how)


def _module() -> Any:
    import pynvml  # noqa: PLC0415  takes 25 ms

    return pynvml


def _health(nvml: Callable[[], Any]) -> tuple[str | None, tuple[GpuHealth, ...], Probe | None]:
    try:
        version, gpus = health.read(nvml())
    except NvmlError as error:
        return None, (), Probe("nvml", "host", "unknown", str(error))
    return version, gpus, None


def _state(gpu: GpuHealth) -> Iterator[Probe]:
    subject = f"GPU {gpu.index}"
    if gpu.error:
        yield Probe("nvml", subject, "fail", f"{gpu.error}; it may need a reset")
        return
    yield _counted("ecc", subject, gpu.ecc_uncorrected, "uncorrected errors since the driver was loaded")
    if gpu.remap_failed is None:
        yield Probe("row remap", subject, "unknown", "not told")
    else:
        bad = gpu.remap_failed or gpu.remap_pending
        detail = "failed: replace the GPU" if gpu.remap_failed else "waits for a reset of the GPU" if bad else "none"
        yield Probe("row remap", subject, "fail" if bad else "ok", detail)


def _counted(name: str, subject: str, count: int | None, what: str) -> Probe:
    if count is None:
        return Probe(name, subject, "unknown", "not told")
    return Probe(name, subject, "fail" if count else "ok", f"{count} {what}")


def kernel_log(dev: Path) -> str | None:
    """The kernel's messages; None where they may not be read."""
    try:
        descriptor = os.open(dev / "kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    parts, size = [], 0
    try:
        while size < KERNEL_LOG_BYTES and (part := _record(descriptor)):
            parts.append(part)
            size += len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def _record(descriptor: int) -> bytes:
    """The next record of /dev/kmsg, which hands out one a read; empty at the end."""
    try:
        return os.read(descriptor, 8192)
    except BrokenPipeError:  # it was overwritten while we read: the next one is there
        return b"\n"
    except OSError:
        return b""


def _xid(gpu: GpuHealth, log: str | None) -> Probe:
    subject = f"GPU {gpu.index}"
    if log is None or gpu.bus_id is None:
        return Probe("xid", subject, "unknown", "the kernel log may not be read here")
    own = [number for bus, number in XID.findall(log) if _short(bus) == _short(gpu.bus_id)]
    if own:
        return Probe("xid", subject, "fail", f"Xid {', '.join(dict.fromkeys(own))} in the kernel log")
    return Probe("xid", subject, "ok", "none in the kernel log")


def _short(bus: str) -> str:
    """Bus and device of a PCI address, however many digits the domain has and with or without a function."""
    return ":".join(bus.lower().split(":")[-2:]).split(".")[0]


def fabric(dev: Path, gpus: tuple[GpuHealth, ...]) -> Iterator[Probe]:
    """Whether the fabric manager has done its work where GPUs hang on NVSwitch."""
    asked = [gpu for gpu in gpus if gpu.fabric is not None]
    for gpu in asked:
        state: State = "ok" if gpu.fabric_ready else "fail"
        hint = "" if gpu.fabric_ready else " (systemctl status nvidia-fabricmanager)"
        yield Probe("fabric", f"GPU {gpu.index}", state, f"{gpu.fabric}{hint}")
    if not asked and (dev / "nvidia-nvswitchctl").exists():
        yield Probe("fabric", "host", "unknown", "there is NVSwitch; this driver does not tell the fabric's state")
