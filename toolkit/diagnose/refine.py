"""Where arithmetic decides: what captures imply beyond what a pattern says. All pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from toolkit.demangle import short_name, string_abi
from toolkit.diagnose.model import Context, Holder, Verdict

_GIB = 1024**3
_NEAR_LINES = 40
_PROCESS = re.compile(r"Process (?P<pid>\d+) has (?P<held>[\d.]+) (?P<unit>[KMG]iB) memory in use")
_SELF = re.compile(r"this process has (?P<held>[\d.]+) (?P<unit>[KMG]iB) memory in use")
_OWN_TENSORS = re.compile(r"Of the allocated memory (?P<held>[\d.]+) (?P<unit>[KMG]iB)")
_TOTAL = re.compile(r"total capacit?y of (?P<held>[\d.]+) (?P<unit>[KMG]iB)")
_UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": _GIB}
# Shares of a GPU: a context alone is no neighbour; beside its tensors a process holds a context and workspaces. What
# adds up to more than the GPU has was counted twice.
_NEIGHBOUR_SHARE = 0.05
_OWN_EXTRA_BYTES = 2.5 * _GIB
_MORE_THAN_ALL = 1.02

_FIND_KERNEL = "find the kernel with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer, or try another back end or release"
_LIBRARIES = {
    "cublaslt": "libcublasLt", "cublas": "libcublas", "cupti": "libcupti", "cusparse": "libcusparse",
    "cusolver": "libcusolver", "cufft": "libcufft", "curand": "libcurand", "nvrtc": "libnvrtc",
    "__nvjitlink": "libnvJitLink", "nvjitlink": "libnvJitLink", "nvtx": "libnvToolsExt",
}  # fmt: skip

# What the driver's numbers mean for who used the GPU (docs.nvidia.com/deploy/xid-errors): start the program again, or
# reset the GPU first. Others tell of nothing that ended a program by itself (45: what others left is torn down).
_PROGRAMS_XIDS = {
    "13": "an exception in a kernel", "31": "an access to memory that is not mapped", "32": "a corrupt push buffer",
    "43": "work that was stopped for an error of the program", "69": "an exception of the compute engine",
    "94": "a memory error that was contained to this program",
}  # fmt: skip
_GPUS_XIDS = {
    "48": "a double bit error of its memory", "61": "its firmware halted", "62": "its firmware halted",
    "64": "a faulty row of its memory that cannot be remapped", "74": "a fault of NVLink", "79": "it fell off the bus",
    "95": "a memory error that was not contained", "109": "a context switch that did not end",
    "119": "its system processor (GSP) does not answer", "120": "a fault of its system processor (GSP)",
    "140": "a memory error that was not recovered from", "143": "it cannot be initialised",
}  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """What surrounds a finding: line and place, the rank that wrote it, names seen before (and where), the plan."""

    number: int
    text: str
    rank: str | None
    seen: Mapping[str, tuple[int, str]]
    context: Context


@dataclass(frozen=True)
class Refined:
    """Changes to a finding; None keeps what the pattern says."""

    captures: Mapping[str, str | None] = field(default_factory=dict)
    kind: str | None = None
    verdict: Verdict | None = None
    culprit: str | None = None
    cause: str | None = None
    fix: str | None = None
    check: str | None = None


Refine = Callable[[Mapping[str, str | None], Scene], Refined]


def derived(captures: Mapping[str, str | None], scene: Scene) -> dict[str, str | None]:
    """The captures, the names seen before, and what both imply for any pattern."""
    values: dict[str, str | None] = {name: value for name, (_, value) in scene.seen.items()}
    values |= {name: value for name, value in captures.items() if value}
    values["rank_name"] = _rank_name(values.get("rank") or scene.rank)
    if symbol := values.get("symbol"):
        values |= {"function": short_name(symbol), "direction": _direction(symbol)}
    if (current := values.get("current")) and (serialized := values.get("serialized")):
        values["serialized_age"] = _age(serialized, current)
    values |= {"ledger": _ledger(scene.context), "holders": _holders(scene.context)}
    return values


def torch_oom(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The memory of other processes tells a neighbour from a model that is too large."""
    others = {found["pid"]: _bytes(found) for found in _PROCESS.finditer(scene.text)}
    total = _bytes(_TOTAL.search(scene.text)) or max(others.values(), default=0.0)
    if own := _own(others, scene.text):
        others.pop(own)
    pid = max(others, key=lambda name: others[name], default=None)
    if pid is None or others[pid] < total * _NEIGHBOUR_SHARE:
        return neighbour(captures, scene)
    cause = f"Another process ({pid}) already holds {others[pid] / _GIB:.1f} GiB of this GPU: this server does not fit."
    fix = "Give every role on the GPU a memory budget, end that process, or place this role on another GPU{ledger|}."
    return Refined(kind="memory_contention", verdict="stop", culprit=f"process {pid}", cause=cause, fix=fix)


def _own(others: Mapping[str, float], text: str) -> str | None:
    """The process that only looks foreign: in a container torch does not recognise its own number."""
    tensors = _bytes(_OWN_TENSORS.search(text))
    if _SELF.search(text) or not tensors:
        return None
    near = {pid: held - tensors for pid, held in others.items() if -_GIB / 10 <= held - tensors <= _OWN_EXTRA_BYTES}
    if not near and tensors + sum(others.values()) > _bytes(_TOTAL.search(text)) * _MORE_THAN_ALL > 0:
        near = {pid: held - tensors for pid, held in others.items() if held >= tensors}
    return min(near, key=lambda pid: near[pid], default=None)


def neighbour(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """With a plan: memory that others hold makes a lack of memory a neighbour's."""
    foreign = [holder for holder in scene.context.holders if holder.service != scene.context.service]
    total = scene.context.total_bytes or 0
    largest = max(foreign, key=lambda holder: holder.held_bytes, default=None)
    if largest is None or largest.held_bytes < total * _NEIGHBOUR_SHARE:
        return Refined()
    return Refined(kind="memory_contention", culprit=largest.service or largest.name, verdict="stop")


def engine_device(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """Another GPU of the node that fits the engine makes it a matter of assignment."""
    engine = captures.get("engine")
    fitting = [str(device.index) for device in scene.context.devices if engine and device.compute == engine]
    if not fitting:
        return Refined()
    gpus = ", ".join(fitting)
    fix = f"Assign GPU {gpus} of this node to the service: it has compute capability {engine}, which the engine needs."
    return Refined(fix=fix)


def cuda_library(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The library that the missing symbol's prefix belongs to."""
    return Refined(captures={"provider": _LIBRARIES.get((captures.get("product") or "").lower())})


def missing_library(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The CUDA major version that a library's number stands for; the driver's libraries are the container's part."""
    library = captures.get("library") or ""
    if library.startswith(("libcuda.so", "libnvidia-")):
        fix = "Give the container the driver's libraries (the NVIDIA container runtime, --gpus), or install the driver."
        return Refined(fix=fix, check="driver-libraries")
    major = re.match(r"lib(?:cudart|cublas|cublasLt|nvrtc|cusparse|cupti)\.so\.(\d+)", library)
    hint = f": it was built for CUDA {major[1]}, which this environment does not bring" if major else ""
    return Refined(captures={"cuda_hint": hint}, check="cuda-major-mismatch" if major else None)


def affinity_culprit(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The program that tried to bind: numactl, psutil, taskset, or the call itself."""
    text = scene.text.lower()
    if "libnuma" in text or "numa_" in text or "setting " in text:
        return Refined(captures={"tool": "numactl"}, check="numa-node")
    if "not eligible" in text:
        return Refined(captures={"tool": "psutil"})
    if "failed to set pid" in text:
        return Refined(captures={"tool": "taskset"})
    return Refined(captures={"tool": captures.get("call")})


def pickle(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """Cut-off data belongs to whatever file was named last: weights, or a compile cache."""
    weight = max(scene.seen.get(name, (0, "")) for name in ("weight_file", "torch_load"))
    cache = max(scene.seen.get("compile_cache", (0, "")), scene.seen.get("cache_code", (0, "")))
    if weight[0] > cache[0] and scene.number - weight[0] < _NEAR_LINES:
        name = scene.seen.get("weight_file", (0, None))[1]
        cause = f"The weight file {name or ''} is cut short, or no weight file (a git-lfs pointer): it cannot be read."
        fix = "Remove the file, download it again in full (git lfs pull where it came from git), then start."
        return Refined(kind="model_files_corrupt", culprit=name, cause=cause, fix=fix, check="model-files")
    return Refined() if cache[0] else Refined(kind="")


def kv_option(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The option that the message itself names."""
    text = scene.text
    for option in ("gpu_memory_utilization", "--mem-fraction-static", "mem_fraction_static", "maxTokensInPagedKvCache"):
        if option in text:
            return Refined(captures={"option": option})
    found = re.search(r"\b(?:kv_cache_)?free_gpu_mem(?:ory)?_fraction\b|\bmax_tokens_in_paged_kv_cache\b", text)
    return Refined(captures={"option": found[0] if found else captures.get("option")})


def port(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """``host:port`` as far as it is told."""
    host, number = captures.get("host"), captures.get("port") or _port_of(scene.text)
    if not number:
        return Refined()
    return Refined(captures={"address": f"{host}:{number}" if host else number})


def _port_of(text: str) -> str | None:
    found = re.search(r"\bport[ :=]+(\d{2,5})\b", text, re.IGNORECASE)
    return found[1] if found else None


def shm_region(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The Python back end of Triton, where its region is named."""
    if re.search(r"triton_python_backend|python backend|shared memory key", scene.text, re.IGNORECASE):
        return Refined(captures={"region_owner": "python backend"}, check="shared-memory-prefix")
    return Refined()


def probe(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The probe's name in lower case, as people write it."""
    return Refined(captures={"probe": (captures.get("probe") or "").lower()})


def dead_rank(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """The rank or worker that died, as the log names it."""
    if captures.get("rank"):
        return Refined(captures={"rank_name": f"rank {captures['rank']}"})
    process = re.sub(r"\s+(?:with )?(?:pid|has|was|is)\b.*", "", (captures.get("process") or "").strip())
    name = re.sub(r"^(?:Worker proc|Worker|Process|Subprocess) (?=\S)", "", process)
    return Refined(captures={"rank_name": name or None})


def xid(captures: Mapping[str, str | None], scene: Scene) -> Refined:
    """Whether the program failed or the GPU, by the number that the driver gives; nothing for all other numbers."""
    number = captures.get("xid") or ""
    if number in _GPUS_XIDS:
        return Refined(captures={"meaning": _GPUS_XIDS[number]})
    if number not in _PROGRAMS_XIDS:
        return Refined(kind="")
    cause = "The driver ended the work of {program|a process} on GPU {pci} (Xid {xid}: {meaning}); its context is gone."
    fix = "Start it again, for a process cannot recover from it. Where it comes again, {then}."
    then = "look at nvidia-smi -q -d ECC,ROW_REMAPPER and have the GPU looked at" if number == "94" else _FIND_KERNEL
    told = {"meaning": _PROGRAMS_XIDS[number], "then": then}
    return Refined(told, "context_destroyed", "retry", captures.get("program"), cause, fix)


REFINEMENTS: Mapping[str, Refine] = {
    "torch_oom": torch_oom, "neighbour": neighbour, "engine_device": engine_device, "cuda_library": cuda_library,
    "missing_library": missing_library, "affinity_culprit": affinity_culprit, "pickle": pickle, "port": port,
    "shm_region": shm_region, "probe": probe, "dead_rank": dead_rank, "kv_option": kv_option,
    "xid": xid,
}  # fmt: skip


def _rank_name(rank: str | None) -> str | None:
    if not rank:
        return None
    return f"rank {rank}" if rank.isdigit() else rank.strip()


def _direction(symbol: str) -> str:
    abi = string_abi(symbol)
    if abi == "old":
        return "the extension uses the old C++ ABI, the installed torch the new one"
    if abi == "new":
        return "the extension uses the new C++ ABI, the installed torch is older or uses the old one"
    return "the signature is another one in the installed torch"


def _age(serialized: str, current: str) -> str:
    """How the engine's TensorRT compares; tags with 0 come from builds that do not tell."""
    older = [int(part) for part in re.findall(r"\d+", serialized)] < [int(part) for part in re.findall(r"\d+", current)]
    if current == "0" or serialized == "0":
        return "another"
    return "an older" if older else "a newer"


def _ledger(context: Context) -> str | None:
    if not context.budget_bytes:
        return None
    total = f" of {context.total_bytes / _GIB:.1f} GiB" if context.total_bytes else ""
    return f" (the plan gives {context.service or 'it'} {context.budget_bytes / _GIB:.1f} GiB{total} on each GPU)"


def _holders(context: Context) -> str | None:
    foreign = [_holder(holder) for holder in context.holders if holder.service != context.service]
    return f" ({', '.join(foreign)})" if foreign else None


def _holder(holder: Holder) -> str:
    return f"{holder} {holder.held_bytes / _GIB:.1f} GiB"


def _bytes(found: re.Match[str] | None) -> float:
    return float(found["held"]) * _UNITS[found["unit"]] if found else 0.0
