"""Why a conversion or a build of an engine failed, from how its program ended and what it printed. Pure."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from toolkit.build.foreign import Ended, HungError
from toolkit.build.full_disk import full_disk_error, is_full_disk
from toolkit.errors import ToolkitError
from toolkit.units import format_bytes, format_duration

_NOTHING = "Nothing was published."
# What a shell, a container and a launcher make of SIGKILL.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_KILLED_LINE = re.compile(r"(?m)^(?:.*\d+ )?Killed\b")
_REFUSED = re.compile(
    r"(?m)^.*error: (.*(?:unrecognized arguments|invalid choice|expected|required|invalid \w+ value).*)$"
)
_GPU_MEMORY = re.compile(r"Requested amount of GPU memory \((\d+) bytes\)")
_OUT_OF_MEMORY = re.compile(r"OutOfMemory|CUDA out of memory|CUDA error: out of memory")
BUILD_FAILED = "Engine building failed"
_UNFUSED = "Fall back to unfused MHA"
_ERROR_LINE = re.compile(r"\[E\]|\[ERROR\]|^\w*(?:Error|Exception)\b|^error:|Assertion")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def failure(ended: Ended, program: str, log_path: Path, disk: Path, *, ranks: str = "") -> ToolkitError:
    """What a person is told of a program that failed; ``ranks``: how far it came."""
    output = _COLOURS.sub("", ended.output)
    if is_full_disk(ended.status, output):
        return full_disk_error(disk)
    if ended.status in _KILLED or _KILLED_LINE.search(output):
        what, hint, code = f"{program} was killed{ranks}", _MEMORY_HINT, "killed"
    elif refused := _REFUSED.search(output):
        hint = "The facts on this release may be wrong; please report this line."
        what, code = f"{program} refused its command line: {refused[1]}", "refused_options"
    elif size := _GPU_MEMORY.search(output) or _OUT_OF_MEMORY.search(output):
        wanted = f"; it asked for {format_bytes(int(size[1]))}" if size.re is _GPU_MEMORY else ""
        what, code = f"{program} ran out of GPU memory{ranks}{wanted}", "gpu_memory"
        hint = "Lower 'max_batch_size', 'max_input_len' or 'max_num_tokens', or use a GPU that nothing else uses."
    else:
        how = f"crashed ({_signal(ended.status)})" if ended.status < 0 else f"failed with exit status {ended.status}"
        what, hint, code = f"{program} {how}{ranks}: {root_line(output)}", "The log says more.", "build_failed"
    return ToolkitError(what, str(log_path), f"{hint} {_NOTHING}", code=code, log_tail=output.splitlines()[-12:])


_MEMORY_HINT = (
    "Host memory is what usually ends a build so: 'dmesg' and memory.events name it. Free some, raise the container's "
    "limit, or build one rank at a time ('options: {workers: 1}')."
)


def hung(error: HungError, program: str, log_path: Path) -> ToolkitError:
    """What a person is told of a program that stopped working without ending."""
    lines = [line.strip() for line in _COLOURS.sub("", error.output).splitlines() if line.strip()]
    last = f"its last line: {lines[-1][:200]}" if lines else "it printed nothing"
    return ToolkitError(
        f"{program} hung: no output, no file and no work for {format_duration(error.seconds)} ({last})",
        str(log_path),
        f"It was ended. MPI and a GPU in a bad state are the usual causes; try again, or look at the log. {_NOTHING}",
        code="hung",
    )


def root_line(output: str) -> str:
    """The earliest line that names an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    found = next((line for line in lines if _ERROR_LINE.search(line)), lines[-1] if lines else "no output")
    return found[:300]


def said(output: str) -> str | None:
    """What the builder itself said of a missing engine; None when it said nothing."""
    plain = _COLOURS.sub("", output)
    return f"it said: {root_line(plain)}" if BUILD_FAILED in plain or "[E]" in plain else None


def fell_back(output: str) -> str | None:
    """The builder's line that says fused attention is not used after all; None when there is none."""
    return next((line.strip()[:200] for line in _COLOURS.sub("", output).splitlines() if _UNFUSED in line), None)


def _signal(status: int) -> str:
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
