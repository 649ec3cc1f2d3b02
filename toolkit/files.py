"""How files appear: written aside, synced, renamed. And what a full or closed disk means to a person."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.units import format_bytes

_REASONS = {
    errno.ENOSPC: "no space is left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would grow past the file size limit",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission is denied",
    errno.EPERM: "permission is denied",
}
_PLACES = "COEXIST_HOME for engines and state, COEXIST_CACHE for caches, COEXIST_RUNTIME_DIR for reservations"
_NO_FOLDER = {
    **_REASONS,
    errno.EEXIST: "what is there is no folder",
    errno.ENOTDIR: "a file is in its way",
    errno.ENOENT: "this file system takes no new files or folders",
}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What compilers and libraries write then, where no error number comes through.
_FULL_TEXTS = (
    *("No space left on device", "File too large", "File size limit exceeded", "Disk quota exceeded"),
    *("os error 28", "os error 27"),
)
_MISSING = object()
_MOST_JSON_BYTES = 64 << 20


def write_atomic(path: Path, data: bytes | str, mode: int = 0o600) -> None:
    """Leaves the file with exactly this content, or as it was; ``mode`` does not depend on the umask.

    Raises: ToolkitError when the disk is full, closed or read-only.
    """
    content = data.encode() if isinstance(data, str) else data
    with disk_errors(path, f"cannot write '{path.name}'", lambda: len(content)):
        publish(path, content, mode)


def publish(path: Path, content: bytes, mode: int = 0o600, *, replace: bool = True, durable: bool = True) -> None:
    """As ``write_atomic``, for callers with their own words for what can go wrong.

    ``durable=False`` saves a sync of the folder: after a power cut the old content may be back, whole too.

    Raises: OSError; FileExistsError when something is there that is not to be replaced.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        if replace:
            Path(temporary).replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, it refuses to replace
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()
    if durable:
        fsync(path.parent)


def read_json(path: Path, default: Any = _MISSING, hint: str | None = None) -> Any:
    """The JSON value of the file, or ``default`` when there is no file and a default is given.

    Raises: ToolkitError naming file and line when it cannot be read or is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        if default is not _MISSING:
            return default
        raise ToolkitError("the file is missing", str(path), hint, code="file_missing") from None
    except OSError as error:
        raise ToolkitError(f"cannot be read: {error.strerror}", str(path), hint, code="file_unreadable") from error
    except json.JSONDecodeError as error:
        place = f"{path}:{error.lineno}"
        what = f"is damaged: {error.msg} (column {error.colno})"
        raise ToolkitError(what, place, hint, code="file_damaged") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ToolkitError("is damaged: this is no JSON text", str(path), hint, code="file_damaged") from error


def json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object of the file; None when there is none to be read, whatever the reason."""
    with suppress(OSError):
        if path.is_file() and path.stat().st_size <= _MOST_JSON_BYTES:  # a pipe would be waited for without end
            return parsed_object(path.read_bytes())
    return None


def parsed_object(text: str | bytes) -> dict[str, Any] | None:
    """The JSON object that the text is; None when it is anything else."""
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        return found if isinstance(found, dict) else None
    return None


def fsync(path: Path) -> None:
    """Leaves the file or folder on the disk, not only in the page cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path, what: str, needed_bytes: Callable[[], int] | None = None) -> Iterator[None]:
    """A block in which an OSError that a person can cure becomes a ToolkitError that begins with ``what``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REASONS:
            raise
        place = Path(os.fsdecode(error.filename)) if isinstance(error.filename, (str, bytes)) else path
        raise _explained(error.errno, place, what, needed_bytes() if needed_bytes else None) from error


def usable_folder(path: Path, variable: str) -> None:
    """The folder is there and takes files.

    Raises: ToolkitError, which names the environment ``variable`` that chooses another.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise unusable_folder(path, error, variable) from error


def writable_file(path: Path, what: str) -> None:
    """A file can be put there, so that what takes long to make is not lost at its end; ``what`` it is to be.

    Raises: ToolkitError.
    """
    hint = "Name a file in a folder that you can write to."
    if path.exists() and not path.is_file():
        raise ToolkitError(f"cannot write {what}: what is there is no file", str(path), hint, code="not_writable")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        why = "there is no such folder" if isinstance(error, FileNotFoundError) else _NO_FOLDER.get(error.errno or 0)
        what = f"cannot write {what}: {why or error.strerror}"
        raise ToolkitError(what, str(path), hint, code="not_writable") from error


def unusable_folder(path: Path, error: OSError, variable: str) -> ToolkitError:
    """Why nothing can be kept in the folder that a variable chooses, and what to do."""
    return ToolkitError(
        f"nothing can be kept in this folder: {_NO_FOLDER.get(error.errno or 0, error.strerror or str(error))}",
        str(path),
        f"Set {variable} to a folder that you can write to.",
        code="no_space" if is_full_disk(error) else "not_writable",
        resource="disk",
    )


def tells_of_full_disk(text: str) -> bool:
    """Whether a program's own words say that the disk is full or a file size limit was met."""
    return any(words in text for words in _FULL_TEXTS)


def is_full_disk(error: OSError) -> bool:
    """Whether an error number says so."""
    return error.errno in _FULL


def full_disk_error(where: str | None) -> ToolkitError:
    """What a person is told where it is not known how much was needed."""
    return ToolkitError(
        "no space is left for the engine, or a file size limit is too low",
        where,
        "Free some space, raise 'ulimit -f', run 'coexist engines prune', or point COEXIST_HOME at a larger disk.",
        code="no_space",
        resource="disk",
    )


def _explained(code: int, path: Path, what: str, needed_bytes: int | None) -> ToolkitError:
    free_bytes = _free_bytes(path)
    what = f"{what}: {_REASONS[code]}"
    if code in _FULL and needed_bytes is not None:
        what += f"; at least {format_bytes(needed_bytes)} are needed, {format_bytes(free_bytes)} are free"
    return ToolkitError(
        what,
        str(path),
        _hint(code),
        code="no_space" if code in _FULL else "not_writable",
        resource="disk",
        needed=needed_bytes,
        available=free_bytes,
    )


def _hint(code: int) -> str:
    if code == errno.EFBIG:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        now = "the file system's own" if limit == resource.RLIM_INFINITY else format_bytes(limit)
        return f"Raise the limit with 'ulimit -f unlimited' (now {now})."
    if code in _FULL:
        return f"Free some space ('coexist engines prune' helps), or use another disk: {_PLACES}."
    return f"Give yourself access to it, or use another place: {_PLACES}."


def _free_bytes(path: Path) -> int:
    existing = next((place for place in (path, *path.parents) if place.exists()), Path("/"))
    return shutil.disk_usage(existing).free
