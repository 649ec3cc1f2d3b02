"""Makes the checkpoint of a recipe when it is missing: converted aside, checked, then published by one rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from toolkit.build import foreign, trtllm_failures
from toolkit.build.foreign import HungError, Patience
from toolkit.build.steps import Command, Report
from toolkit.build.trtllm_checkpoint import CONFIG, Checkpoint, Source, read
from toolkit.build.trtllm_commands import conversion
from toolkit.build.trtllm_estimate import check_disk
from toolkit.errors import ToolkitError
from toolkit.files import disk_errors, fsync
from toolkit.store import locks
from toolkit.units import format_duration

_STAGING = ".converting-"


def convert(
    source: Source, python: Path, environ: Mapping[str, str], *, log_path: Path, patience: Patience, report: Report
) -> tuple[Checkpoint, tuple[Command, ...]]:
    """The recipe's checkpoint as it is now on disk, and what was run to make it.

    Raises: ToolkitError when the conversion fails, hangs, fills the disk, or gives something else; nothing is left.
    """
    folder = source.checkpoint.folder
    if source.conversion is None:
        return source.checkpoint, ()
    with disk_errors(folder, "cannot make the checkpoint"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locks.exclusive(folder.with_name(f".{folder.name}.lock"), _waiting(folder, report)):
            if (folder / CONFIG).exists():
                return read(folder), ()
            _check_place(folder)
            check_disk(_model_bytes(source.conversion.model_dir), folder, "the converted checkpoint")
            with _staging(folder) as staging:
                command = conversion(source, staging, python, environ)
                assert command is not None  # noqa: S101  there is something to convert
                _run(command, staging, log_path, patience, report)
                _check(read(staging), source)
                _publish(staging, folder)
    return read(folder), (command,)


def _check_place(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        what = f"holds files but no {CONFIG}: no finished checkpoint"
        raise ToolkitError(what, str(folder), "Remove the folder, or name another.", code="not_a_checkpoint")


def _model_bytes(model_dir: Path) -> int | None:
    weights = (path for pattern in ("*.safetensors", "*.bin") for path in model_dir.glob(pattern))
    return sum(path.stat().st_size for path in weights) or None


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder beside the checkpoint's place; those of dead conversions go, for the lock says that nobody converts."""
    for leftover in folder.parent.glob(f".{folder.name}{_STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    staging = folder.with_name(f".{folder.name}{_STAGING}{os.getpid()}")
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _run(command: Command, staging: Path, log_path: Path, patience: Patience, report: Report) -> None:
    script = Path(command.argv[1]).name
    report(f"converting the model with {script} …")
    try:
        ended = foreign.run(command, log_path, staging.parent, watched=staging, patience=patience)
    except HungError as error:
        raise trtllm_failures.hung(error, script, log_path) from None
    if ended.status != 0:
        raise trtllm_failures.failure(ended, script, log_path, staging.parent)
    report(f"converted in {format_duration(ended.seconds)}")


def _check(made: Checkpoint, source: Source) -> None:
    """Raises ToolkitError when the script made something else than it was asked for."""
    asked = source.checkpoint
    if (made.tp_size, made.pp_size) != (asked.tp_size, asked.pp_size):
        what = f"the conversion made tp_size {made.tp_size}, pp_size {made.pp_size}"
        what += f"; {asked.tp_size} and {asked.pp_size} were asked for"
        raise ToolkitError(what, str(made.folder), "Nothing was published.", code="conversion")
    missing = [path.name for path in made.rank_files() if not path.is_file() or path.stat().st_size == 0]
    if missing:
        what = f"the conversion ended without {', '.join(missing)}"
        raise ToolkitError(what, str(made.folder), "Nothing was published; the log says more.", code="conversion")


def _publish(staging: Path, folder: Path) -> None:
    for path in (*staging.rglob("*"), staging):
        fsync(path)
    if folder.is_dir():
        folder.rmdir()
    staging.rename(folder)
    fsync(folder.parent)


def _waiting(folder: Path, report: Report) -> locks.Waiting:
    def waiting(pid: int | None, seconds: float) -> None:
        who = f"process {pid}" if pid else "another process"
        report(f"{who} is converting into {folder}; waiting for it ({format_duration(seconds)} so far)")

    return waiting
