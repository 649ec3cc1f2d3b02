"""Rules about GPUs: what runs on them, the driver, MIG, compute mode, MPS, and who holds their memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolkit.compat.book import rules
from toolkit.compat.model import Case, EnvironmentView, Hit, Role, Severity, named, sm_of
from toolkit.facts import Fact, FlashRow, Release
from toolkit.facts.model import Driver, version, within
from toolkit.host.model import Gpu
from toolkit.units import GIB, MIB, format_bytes

HELD_BYTES = 256 * MIB  # under that it is a display or a monitor
UNTOLD_BYTES = 2 * GIB  # used without a process; an idle H200 shows 615 MiB, which is the driver's own
CAPTURE_BYTES = 3 * GIB  # vllm-project/vllm PR#36634: capture took 1 to 3 GiB
# Servers that never call flash-attn; what the built-in one calls when told to ('auto' takes what the GPU can do).
WITHOUT_FLASH = {"trtllm", "triton", "command", "torch"}
ATTENTION = {"fa2": {"flash-attn"}, "fa3": {"flash-attn-3", "flashattn-hopper"}, "fa4": {"flash-attn-4"}}


def devices(gpus: Iterable[Gpu]) -> int:
    """How many devices a process could be given: whole GPUs, or the slices of those split by MIG."""
    return sum(1 if gpu.mig is None else len(gpu.mig) for gpu in gpus)


def severity_of(role: Role, bad: tuple[Gpu, ...]) -> Severity | None:
    """A warning where enough other GPUs are left for the role; None: as the rule says."""
    return "warning" if devices(role.gpus) - devices(bad) >= max(role.needed, 1) else None


def _uses(role: Role, package: str) -> bool:
    """Whether a role may call this flash-attn package without asking first what the GPU can do."""
    if role.runtime == "flash" and role.service:
        return package in ATTENTION.get(role.service.attention, set())
    attention = role.service.attention if role.service else "auto"
    return role.runtime not in WITHOUT_FLASH and attention not in {"sdpa", "vanilla"}


def flash_attention(case: Case) -> Iterator[Hit]:
    """GPUs that the flash-attn of an environment refuses, or that its prebuilt wheels have no code for."""
    for role in case.roles:
        view = case.environments.get(role.environment)
        for package in view.flash_packages if view else ():
            if view and _uses(role, package):
                row = case.facts.flash_attn(package, view.packages[package])
                yield from _flash(case, role, view, package, row)


def _flash(case: Case, role: Role, view: EnvironmentView, package: str, row: FlashRow | None) -> Iterator[Hit]:
    lowest = min((each.capability[0] or 0 for each in case.facts.flash if each.package == package), default=0)
    refused = tuple(gpu for gpu in role.gpus if (sm := sm_of(gpu)) and _refuses(row, lowest, sm))
    if refused:
        wanted = f"{_dotted(row.capability[0] if row else lowest)} to {_dotted(row.capability[1] if row else None)}"
        reason = f"{row.note}." if row and row.note else "Its README names the GPUs it is made for."
        values = {"package": f"{package} {view.packages[package]}", "gpus": named(refused), "reason": reason}
        yield Hit(
            "flash-attention-architecture",
            role.name,
            view.name,
            {**values, "wanted": wanted},
            severity=severity_of(role, refused),
            sources=row.source if row else (),
        )
    elif row and view.hypothetical:
        yield from _no_code_in_wheels(role, view, row)


def _refuses(row: FlashRow | None, lowest: int, sm: int) -> bool:
    return row.runs_on(sm) is False if row else sm < lowest


def _dotted(sm: int | None) -> str:
    return f"{sm // 10}.{sm % 10}" if sm else "any newer"


def _no_code_in_wheels(role: Role, view: EnvironmentView, row: FlashRow) -> Iterator[Hit]:
    without = tuple(gpu for gpu in role.gpus if (sm := sm_of(gpu)) and not row.wheel_has_code_for(sm))
    if without:
        built = ", ".join(f"sm_{sm}" for sm in row.wheel_sm)
        values = {
            "gpus": named(without),
            "reason": f"Prebuilt wheels hold {built}.",
            "step": f"Build it for this GPU: FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTN_CUDA_ARCHS=... "
            f"{view.shown_python} -m pip install --no-build-isolation {row.package}=={row.name}",
        }
        subject = f"{row.package} {row.name}"
        yield Hit("gpu-architecture", subject, view.name, values, severity="warning", effect="step", sources=row.source)


def trtllm(case: Case) -> Iterator[Hit]:
    """GPUs that a release of TensorRT-LLM does not support, or of which no source says so."""
    for role in case.roles:
        view = case.environments.get(role.environment)
        release = case.facts.trtllm(view.packages.get("tensorrt-llm")) if view else None
        if view is None or release is None or role.runtime not in {None, "trtllm", "triton"}:
            continue
        for gpu in role.gpus:
            sm = sm_of(gpu)
            if sm is not None:
                yield from _supported(case, role, view, release, gpu, sm)


def _supported(  # noqa: PLR0917
    case: Case, role: Role, view: EnvironmentView, release: Release, gpu: Gpu, sm: int
) -> Iterator[Hit]:
    listed, reason = release.fact("sm"), unsupported(case, release, sm)
    values = {"release": view.packages["tensorrt-llm"], "gpus": named((gpu,))}
    if reason:
        step = f"Take a release of TensorRT-LLM that names sm_{sm} (coexist check --matrix), or another GPU"
        yield Hit(
            "gpu-architecture",
            f"TensorRT-LLM {values['release']}",
            view.name,
            {**values, "reason": reason, "step": step},
            severity=severity_of(role, (gpu,)),
            sources=listed.source if listed else (),
        )
    elif not supports(release, sm) and view.hypothetical:
        note = (listed.note if listed else None) or "Its list of GPUs is not known"
        yield Hit("gpu-support-unknown", "tensorrt-llm", view.name, {**values, "note": f"{note}."})


def supports(release: Release, sm: int) -> bool:
    """Whether a source names this compute capability for a release."""
    return any(sm in fact.value for fact in _lists(release, "sm", "sm_added"))


def _lists(release: Release, *names: str) -> Iterator[Fact]:
    return (fact for name in names if (fact := release.fact(name)) is not None)


def unsupported(case: Case, release: Release, sm: int) -> str | None:
    """Why a release cannot run on a compute capability; None: it can, or no source decides."""
    excluded, listed, cuda = release.fact("sm_excluded"), release.fact("sm"), release.fact("cuda")
    if excluded and sm in excluded.value:
        return f"{excluded.note or 'A source excludes it'}."
    kernels = release.fact("fmha_sm")
    if listed and sm < min(listed.value) and not (kernels and sm in kernels.value):
        return f"It is made for compute capability {_dotted(min(listed.value))} and higher."
    first = first_cuda(case, sm)
    if cuda and first and within(str(cuda.value), f"<{first}"):
        return f"It is built with CUDA {cuda}, and code for sm_{sm} needs CUDA {first}."
    return None


def first_cuda(case: Case, sm: int) -> str | None:
    """The first CUDA release with code for an architecture; None: as old as any here, or not told."""
    return next((row.cuda for row in case.facts.architectures if row.sm // 10 == sm // 10), None)


def torch_cuda(case: Case) -> Iterator[Hit]:
    """A torch whose CUDA is older than the GPU; where its files were read, those decide."""
    for role in case.roles:
        view = case.environments.get(role.environment)
        if view is None or view.torch_cuda is None or (view.binaries and view.binaries.torch_gpu_code.count()):
            continue
        old = tuple(gpu for gpu in role.gpus if _newer_than(case, view.torch_cuda, gpu))
        if old:
            wanted = max(first for gpu in old if (first := first_cuda(case, sm_of(gpu) or 0)))
            values = {
                "gpus": named(old),
                "reason": f"It is built with CUDA {view.torch_cuda}; the GPU needs {wanted}.",
                "step": f"Install a torch for CUDA {wanted} or newer",
            }
            subject = f"torch {view.torch or ''}".strip()
            yield Hit("gpu-architecture", subject, view.name, values, severity=severity_of(role, old))


def _newer_than(case: Case, cuda: str, gpu: Gpu) -> bool:
    first = first_cuda(case, sm_of(gpu) or 0)
    return bool(first and within(cuda, f"<{first}"))


def driver(case: Case) -> Iterator[Hit]:
    """A driver that is too old for the CUDA that torch is built with."""
    installed = case.host.driver_version if case.host else None
    for view in case.environments.values():
        built = view.torch_cuda or _cuda_of_release(case, view)
        cuda = version(built)
        if cuda is None or installed is None or not case.gpus_of(view.name):
            continue
        major = _row(case.facts.minor_drivers, str(cuda.major))
        exact = _row(case.facts.drivers, f"{cuda.major}.{cuda.minor}")
        values = {"driver": installed, "cuda": built, "major": cuda.major, "older": cuda.major - 1}
        if major and within(installed, f"<{major.driver}"):
            values["needed"] = major.driver
            yield Hit("driver-cuda-version", "torch", view.name, values, sources=major.source)
        elif exact and within(installed, f"<{exact.driver}"):
            values["needed"] = exact.driver
            yield Hit("driver-minor-version", "torch", view.name, values, sources=exact.source)


def _cuda_of_release(case: Case, view: EnvironmentView) -> str | None:
    """The CUDA that a TensorRT-LLM nobody installed is built with."""
    release = case.facts.trtllm(view.packages.get("tensorrt-llm")) if view.hypothetical else None
    fact = release.fact("cuda") if release else None
    return str(fact.value) if fact else None


def _row(rows: tuple[Driver, ...], cuda: str) -> Driver | None:
    return next((row for row in rows if row.cuda == cuda), None)


def enough(case: Case) -> Iterator[Hit]:
    """Services that need more GPUs than there are, and ranks without one."""
    for role in case.roles:
        count = devices(case.host.gpus) if case.host else 0
        asked = role.service.gpus.size if role.service else role.needed
        if role.needed and not asked:
            yield Hit("gpu-not-asked", role.name, role.environment, {"runtime": role.runtime})
        elif case.host is not None and role.needed > count:
            reason = "; ".join(case.host.notes) or "No GPU more is visible here."
            yield Hit("no-gpu", role.name, role.environment, {"needed": role.needed, "count": count, "reason": reason})
        size = role.service.gpus.size if role.service else 0
        if size and role.world_size > size:
            yield Hit("ranks-per-host", role.name, role.environment, {"ranks": role.world_size, "count": size})


def not_named(case: Case) -> Iterator[Hit]:
    """A what-if about packages for GPUs without any GPU."""
    for view in case.environments.values() if not (case.host and case.host.gpus) else ():
        packages = [name for name in ("tensorrt-llm", *view.flash_packages) if view.has(name)]
        if view.hypothetical and packages:
            yield Hit("gpu-not-named", view.name, view.name, {"packages": " and ".join(packages)})


def visible(case: Case) -> Iterator[Hit]:
    """GPUs that a service names and that are not there."""
    for role in case.roles:
        for device in role.service.gpus.devices if role.service and case.host else ():
            if not any(matches(device, gpu) for gpu in (case.host.gpus if case.host else ())):
                values = {"device": device, "visible": _uuids(case)}
                yield Hit("device-visible", role.name, role.environment, values)


def matches(device: int | str, gpu: Gpu) -> bool:
    """Whether a GPU, or a slice of it, is what a person named by index or UUID."""
    if isinstance(device, int):
        return gpu.index == device
    return gpu.uuid.startswith(device) or any(slice_.uuid.startswith(device) for slice_ in gpu.mig or ())


def _uuids(case: Case) -> str:
    gpus = case.host.gpus if case.host else ()
    return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"


def mig(case: Case) -> Iterator[Hit]:
    """Several ranks of one model on a GPU that is split."""
    for role in case.roles:
        split = tuple(gpu for gpu in role.gpus if gpu.mig is not None)
        if role.world_size > 1 and split and len(role.gpus) - len(split) < role.world_size:
            yield Hit(
                "mig-tensor-parallel", role.name, role.environment, {"ranks": role.world_size, "gpus": named(split)}
            )


def compute_mode(case: Case) -> Iterator[Hit]:
    """GPUs that refuse contexts, or a second one where two services share."""
    for role in case.roles:
        shares = bool(role.service and role.service.gpus.share)
        for gpu in role.gpus if role.needed else ():
            mode = gpu.compute_mode
            if mode == "Prohibited" or (mode and mode.startswith("Exclusive")):
                yield _mode(role, gpu, mode, shares)


def _mode(role: Role, gpu: Gpu, mode: str, shares: bool) -> Hit:
    prohibited = mode == "Prohibited"
    reason = "No process may use it." if prohibited else "One process alone may have a context there."
    values = {
        "gpus": named((gpu,)),
        "mode": mode,
        "reason": f"{reason} The same message comes from a GPU that needs a reset.",
        "step": f"nvidia-smi -i {gpu.index} -c DEFAULT (as root)",
    }
    return Hit(
        "compute-mode", role.name, role.environment, values, severity=None if prohibited or shares else "warning"
    )


def order(case: Case) -> Iterator[Hit]:
    """Unlike GPUs whose numbers depend on who counts."""
    models = sorted({gpu.name for gpu in case.host.gpus if gpu.name}) if case.host else []
    unset = case.surroundings.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if len(models) > 1 and unset and case.host and not case.host.recorded:
        yield Hit("mixed-gpu-order", "GPUs", None, {"models": ", ".join(models)})


def uuids(case: Case) -> Iterator[Hit]:
    """Servers that read numbers only in CUDA_VISIBLE_DEVICES."""
    affected = rules()["device-uuid-support"].versions
    for role in case.roles:
        view = case.environments.get(role.environment)
        found = view.packages.get("vllm") if view else None
        if role.runtime == "vllm" and affected and within(found, affected):
            yield Hit("device-uuid-support", role.name, role.environment, {"found": found})


def mps(case: Case) -> Iterator[Hit]:
    """A CUDA_MPS_PIPE_DIRECTORY that leads nowhere."""
    found = case.surroundings.mps
    if found.pipe_directory is None:
        return
    if found.exists is False:
        what = f"CUDA_MPS_PIPE_DIRECTORY names {found.pipe_directory}, which is not there"
    elif found.daemon is False:
        what = f"CUDA_MPS_PIPE_DIRECTORY names {found.pipe_directory}, but no MPS daemon runs"
    else:
        return
    step = "unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY, or start nvidia-cuda-mps-control -d"
    values = {"what_mps": what, "step": step}
    if _passes_mps_on(case):
        yield Hit("mps-daemon", "MPS", None, values)
    else:  # coexist passes the variable on to no service
        yield Hit("mps-daemon", "MPS", None, values, severity="note", effect="none")


def _passes_mps_on(case: Case) -> bool:
    services = [role.service for role in case.roles if role.service]
    return case.deployment is None or any("CUDA_MPS_PIPE_DIRECTORY" in service.env for service in services)


def ledger(case: Case) -> Iterator[Hit]:
    """Services that share a GPU without saying how much of it each takes."""
    sharers = [role for role in case.roles if role.service and role.service.gpus.size and role.service.gpus.share]
    without = [role.name for role in sharers if role.service and role.service.gpu_memory is None]
    if len(sharers) > 1 and without:
        names = {"services": ", ".join(role.name for role in sharers), "unbudgeted": ", ".join(without)}
        yield Hit("gpu-memory-ledger", names["unbudgeted"], None, names)


def capture(case: Case) -> Iterator[Hit]:
    """Budgets that leave nothing for the capture of CUDA graphs."""
    for role in case.roles:
        model, service = case.surroundings.models.get(role.name), role.service
        if service is None or service.gpu_memory is None or role.runtime not in {"vllm", "sglang", "trtllm"}:
            continue
        weights = (model.weights_bytes or 0) // role.world_size if model else 0
        if weights and service.gpu_memory - weights < CAPTURE_BYTES and not service.options.get("enforce_eager"):
            budget = format_bytes(service.gpu_memory)
            yield Hit("graph-capture-memory", role.name, role.environment, {"budget": budget})


def held(case: Case) -> Iterator[Hit]:
    """GPU memory in use by processes of nobody here."""
    gpus = {gpu.uuid: gpu for role in case.roles if role.needed for gpu in role.gpus}
    for gpu in gpus.values() if case.host and not case.host.recorded else ():
        told = sum(each.used_bytes or 0 for each in gpu.holders if each.pid is not None)
        whole = gpu.used_bytes or 0 if gpu.mig is None else 0
        if told > HELD_BYTES or whole - told > UNTOLD_BYTES:
            yield _held(gpu, max(told, whole))


def _held(gpu: Gpu, used: int) -> Hit:
    names = [f"{each.name or 'a process'} (pid {each.pid})" for each in gpu.holders if each.pid is not None]
    step = (
        f"See whether they are left over (ps -o pid,ppid,etime,cmd -p PID) and end them: kill {_pids(gpu)}"
        if names
        else "The holder is outside this container, or the driver still frees it: look there; do not reset the GPU"
    )
    values = {
        "gpus": named((gpu,)),
        "held": format_bytes(used),
        "holders": ", ".join(names) or "an unknown holder",
        "step": step,
    }
    return Hit("orphan-processes", f"GPU {gpu.index}", None, values)


def _pids(gpu: Gpu) -> str:
    return " ".join(str(each.pid) for each in gpu.holders if each.pid is not None)


RULES = {
    "flash-attention-architecture": flash_attention,
    "gpu-architecture": trtllm,
    "torch-cuda": torch_cuda,
    "driver-cuda-version": driver,
    "no-gpu": enough,
    "gpu-not-named": not_named,
    "device-visible": visible,
    "mig-tensor-parallel": mig,
    "compute-mode": compute_mode,
    "mixed-gpu-order": order,
    "device-uuid-support": uuids,
    "mps-daemon": mps,
    "gpu-memory-ledger": ledger,
    "graph-capture-memory": capture,
    "orphan-processes": held,
}
