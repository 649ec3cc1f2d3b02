"""Rules about compiled files: what the reading of their symbols and libraries found, told as findings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit.compat.model import FLASH_PACKAGES, SERVER_PACKAGES, Case, EnvironmentView, Hit, named, sm_of
from toolkit.environments.extensions import Extension
from toolkit.environments.fatbin import GpuCode
from toolkit.environments.linking import Library
from toolkit.environments.mismatch import Mismatch
from toolkit.facts.model import within
from toolkit.host.model import Gpu

SHOWN_SYMBOLS = 4
# Whose symbol is missing decides what is wrong.
BY_OWNER = {"torch": "abi-torch-mismatch", "tensorrt_llm": "mixed-install", "tensorrt": "tensorrt-library"}
BY_REASON = {
    "torch_without_cuda": "torch-without-cuda",
    "cuda_major": "cuda-major",
    "driver_missing": "driver-library-missing",
    "library_missing": "missing-library",
    "library_too_old": "library-too-old",
    "unreadable": "binary-damaged",
}


def mismatches(case: Case) -> Iterator[Hit]:
    """Every reason why a compiled file does not fit the process it is loaded into."""
    for view in case.environments.values():
        for package, found in _all(view):
            if not _one_of_several(package, found):
                yield _hit(case, view, package, found)


def _one_of_several(package: str, found: Mismatch) -> bool:
    """Whether the file is one of mpi4py's, which has a module per MPI and loads the one that is there."""
    return package == "mpi4py" and found.reason == "library_missing"


def gone(case: Case) -> Iterator[Hit]:
    """Compiled files that an installer recorded and that are not there any more."""
    for view in case.environments.values():
        for lost in view.binaries.selection.missing if view.binaries else ():
            package = _package_of(view, lost)
            values = {"package": package, "asked": "Its installer recorded it, and it is gone."}
            yield Hit("binary-damaged", short(lost.path), view.name, values, (str(lost.path),))


def _all(view: EnvironmentView) -> Iterator[tuple[str, Mismatch]]:
    if view.binaries is None:
        return
    for found in view.binaries.torch_mismatches:
        yield "torch", found
    for binary in view.binaries.files:
        for found in binary.mismatches:
            yield _package_of(view, binary.extension), found


def _package_of(view: EnvironmentView, extension: Extension) -> str:
    """The distribution of a file; where no installer recorded it, by the name of its package: flash_attn_2_cuda.so."""
    top = (extension.package or extension.path.name).split(".")[0].replace("_", "-").lower()
    named = [name for name in view.packages if f"{top}-".startswith(f"{name}-")]
    return extension.distribution or max(named, key=len, default=top)


def rule_of(found: Mismatch) -> str:
    """The rule that a mismatch belongs to."""
    if found.reason in BY_REASON:
        return BY_REASON[found.reason]
    if found.reason == "cxx11_abi":
        return BY_OWNER.get(found.owner or "", "abi-torch-mismatch")
    return BY_OWNER.get(found.owner or "", "symbol-missing")


def _hit(case: Case, view: EnvironmentView, package: str, found: Mismatch) -> Hit:
    rule = rule_of(found)
    here = f", which has {found.here}" if found.here else ""
    values = {
        "package": package,
        "asked": found.asked,
        "here": found.here if rule in {"cuda-major", "library-too-old"} else here,
        "library": found.asked,
        "built": _built(found),
        "torch": _torch(view),
        "version": view.packages.get("tensorrt-llm") or "VERSION",
        "pin": _tensorrt_pin(case, view),
        "driver_cuda": (case.host.cuda_driver_version if case.host else None) or "of an unknown version",
    }
    on_gpu = rule == "driver-library-missing" and bool(case.gpus_of(view.name)) and case.wants_gpu(view.name)
    return Hit(
        rule, short(found.guilty), view.name, values, tuple(_evidence(found)), severity="error" if on_gpu else None
    )


def short(path: Path) -> str:
    """A compiled file with its package's folder: ``torchvision/_C.so``."""
    folder = path.parent.name
    return path.name if folder in {"site-packages", "dist-packages", "lib-dynload"} else f"{folder}/{path.name}"


def _built(found: Mismatch) -> str:
    if found.reason == "cxx11_abi":
        return f"the {found.asked} C++11 ABI, not for the {found.here} one: for another torch"
    return {"older": "an older torch", "newer": "a newer torch"}.get(found.built_for or "", "another torch")


def _torch(view: EnvironmentView) -> str:
    return f"{view.torch or 'unknown'}{f', CUDA {view.torch_cuda}' if view.torch_cuda else ''}"


def _tensorrt_pin(case: Case, view: EnvironmentView) -> str:
    release = case.facts.trtllm(view.packages.get("tensorrt-llm"))
    fact = release.fact("tensorrt") if release else None
    return str(fact) if fact else ""


def _evidence(found: Mismatch) -> Iterator[str]:
    yield str(found.guilty)
    if found.told_by:
        age = f"{found.built_for} {found.owner or 'release'}, " if found.built_for else ""
        yield f"{age}told by {found.told_by}"
    for symbol in found.symbols[:SHOWN_SYMBOLS]:
        readable = symbol.evidence.asked if symbol.evidence else symbol.symbol
        yield f"undefined symbol {symbol.symbol} ({readable})" if readable != symbol.symbol else f"undefined {readable}"
    if len(found.symbols) > SHOWN_SYMBOLS:
        yield f"and {len(found.symbols) - SHOWN_SYMBOLS} more symbols"


def broken_flash_attn(case: Case) -> Iterator[Hit]:
    """A flash-attn that does not load, in an environment whose servers import transformers."""
    for view in case.environments.values():
        broken = {package for package, found in _all(view) if found.reason != "driver_missing"} & set(FLASH_PACKAGES)
        if broken and view.has("transformers"):
            servers = [name for name in SERVER_PACKAGES if view.has(name)] or ["servers built on transformers"]
            package = min(broken)
            yield Hit(
                "flash-attn-breaks-server",
                package,
                view.name,
                {"servers": ", ".join(servers), "package": package},
                (f"transformers {view.packages['transformers']}",),
            )


def shadowed(case: Case) -> Iterator[Hit]:
    """Libraries that LD_LIBRARY_PATH puts before those that packages brought."""
    for view in case.environments.values():
        seen: dict[str, Library] = {}
        for library in _libraries(view):
            if library.via == "ld_library_path" and library.passed_over:
                seen.setdefault(library.name, library)
        for name, library in seen.items():
            folder = str(library.path.parent) if library.path else "?"
            evidence = (f"loaded: {library.path}", f"passed over: {library.passed_over}", f"for: {library.asked_by}")
            yield Hit("shadowed-library", name, view.name, {"library": name, "folder": folder}, evidence)


def _libraries(view: EnvironmentView) -> Iterator[Library]:
    if view.binaries is not None:
        for resolution in (*view.binaries.torch, *(binary.resolution for binary in view.binaries.files)):
            yield from resolution.libraries


def compat_library(case: Case) -> Iterator[Hit]:
    """A libcuda of a compat package that is older than the driver."""
    for view in case.environments.values():
        driver = view.binaries.driver if view.binaries else None
        if driver and driver.compat and within(driver.version, f"<{driver.driver}"):
            values = {"version": driver.version, "driver": driver.driver}
            evidence = (f"{driver.found.path}", "driver: /proc/driver/nvidia/version")
            yield Hit("cuda-compat-library", "libcuda.so.1", view.name, values, evidence)


def gpu_code(case: Case) -> Iterator[Hit]:
    """Compiled files whose GPU code has nothing for a GPU that a role may get."""
    for view in case.environments.values():
        if view.binaries is None:
            continue
        gpus = case.gpus_of(view.name)
        if torch_lacks := _lacking(gpus, view.binaries.torch_gpu_code):
            yield _no_code("torch", "torch", case, view, torch_lacks, view.binaries.torch_gpu_code)
        for binary in view.binaries.files:
            if lacks := _lacking(gpus, binary.gpu_code):
                package = _package_of(view, binary.extension)
                yield _no_code(short(binary.extension.path), package, case, view, lacks, binary.gpu_code)


def _lacking(gpus: tuple[Gpu, ...], code: GpuCode) -> tuple[Gpu, ...]:
    """The GPUs for which not one piece of the code is made; code that is read in part says nothing."""
    if code.error or not code.count():
        return ()
    known = ((gpu, sm_of(gpu)) for gpu in gpus)
    return tuple(gpu for gpu, sm in known if sm and code.without_kernel(f"{sm // 10}.{sm % 10}") == code.count())


def _no_code(  # noqa: PLR0917
    subject: str, package: str, case: Case, view: EnvironmentView, lacks: tuple[Gpu, ...], code: GpuCode
) -> Hit:
    have = ", ".join(map(str, code.targets))
    values = {
        "gpus": named(lacks),
        "reason": f"It holds {have}.",
        "step": f"Install a build of {package} for this GPU, or give the service one of those it is built for",
    }
    spared = set(lacks) < set(case.gpus_of(view.name))
    return Hit("gpu-architecture", subject, view.name, values, (have,), severity="warning" if spared else None)


RULES = {
    "binaries": mismatches,
    "binary-gone": gone,
    "flash-attn-breaks-server": broken_flash_attn,
    "shadowed-library": shadowed,
    "cuda-compat-library": compat_library,
    "gpu-code": gpu_code,
}
