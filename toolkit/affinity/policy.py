"""Which NUMA memory policy a service gets, and why."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.affinity import pin
from toolkit.host.model import Host
from toolkit.units import format_cpu_list, parse_cpu_list

PIN_FILE = Path(pin.__file__)
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class MemoryPolicy:
    """What the wrapper asks of the kernel. ``bind`` restricts, ``preferred`` falls back, ``none`` changes nothing."""

    kind: Literal["bind", "preferred", "none"]
    nodes: tuple[int, ...]
    why: str

    @property
    def spec(self) -> str:
        """The wrapper's ``--mem`` argument."""
        return f"{self.kind}:{format_cpu_list(self.nodes)}" if self.kind != "none" else "none"


def choose(host: Host, numa_nodes: Iterable[int], memory_bind: Iterable[int] | None) -> MemoryPolicy:
    """Bind where the plan binds and the host permits it, else preferred, else none. Pure.

    ``numa_nodes``: where the service's CPUs and GPUs are; ``memory_bind``: what the plan binds to, None: nothing.
    """
    nodes = tuple(sorted(set(memory_bind if memory_bind is not None else numa_nodes)))
    allowed = tuple(node for node in nodes if host.mems_allowed is None or node in host.mems_allowed)
    if reason := _why_none(host, nodes, allowed, memory_bind is not None):
        return MemoryPolicy("none", (), reason)
    text = format_cpu_list(allowed)
    if reason := _why_not_bind(host, nodes, allowed, memory_bind is not None):
        return MemoryPolicy("preferred", allowed, f"prefers node {text}: {reason}")
    return MemoryPolicy("bind", allowed, f"bound to node {text}: its CPUs and GPUs are there")


def _why_none(host: Host, nodes: tuple[int, ...], allowed: tuple[int, ...], planned: bool) -> str | None:
    permitted = host.limits.mempolicy_permitted
    if not nodes:
        return "no policy: the NUMA node of its GPUs and CPUs is not known"
    if not planned and len(host.numa) == 1:
        return "no policy: this host has one NUMA node"
    if permitted is False:
        return "no policy: this container refuses set_mempolicy (allow the call, or add CAP_SYS_NICE)"
    if permitted is None:
        return "no policy: whether set_mempolicy is permitted here is not known"
    if not allowed:
        return f"no policy: this container may not use memory of node {format_cpu_list(nodes)}"
    return None


def _why_not_bind(host: Host, nodes: tuple[int, ...], allowed: tuple[int, ...], planned: bool) -> str | None:
    # A GPU whose memory is a NUMA node (GH200, GB200) must be able to place pages there.
    memory_only = [node.node for node in host.numa if not node.cpus]
    memory_only += [gpu.gpu_numa_id for gpu in host.gpus if gpu.gpu_numa_id is not None]
    if memory_only:
        return f"node {format_cpu_list(memory_only)} is memory only, so nodes are not restricted on this host"
    if allowed != nodes:
        return f"this container may not use memory of node {format_cpu_list(set(nodes) - set(allowed))}"
    if not planned:
        return "the plan does not bind its memory"
    return None


def probe_mempolicy_permitted(status: Path = Path("/proc/self/status"), prefix: tuple[str, ...] = ()) -> bool:
    """Whether ``set_mempolicy`` works here, tried in a child; ``prefix`` is argv to put in front of it."""
    allowed = re.search(r"^Mems_allowed_list:\s*(\S+)", status.read_text(), re.MULTILINE)
    if allowed is None:
        return False  # a kernel without NUMA
    node = parse_cpu_list(allowed[1])[0]
    argv = [*prefix, sys.executable, "-I", "-S", str(PIN_FILE), "--mem", f"bind:{node}", "--check"]
    result = subprocess.run(argv, check=False, capture_output=True, env={}, timeout=_PROBE_TIMEOUT_S)
    return result.returncode == 0
