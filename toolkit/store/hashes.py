"""What an engine depends on, as one name: canonical JSON of its parts, and hashes of its model's files."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.files import disk_errors, json_object, write_atomic

_CHUNK_BYTES = 1 << 20
_HASH_THREADS = 4
_CACHE_SCHEMA = 1
# A file written again within one tick of a coarse clock keeps its mtime: too young to be remembered.
# FAT keeps 2 s, the coarsest of all.
_SETTLED_NS = 2_000_000_000


def fingerprint(parts: Mapping[str, Any]) -> str:
    """64 hex digits (SHA-256) that are the same exactly when the parts are; order of keys does not count.

    Raises: TypeError for a value that is no JSON, or a path.
    """
    text = json.dumps(_canonical(parts), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"a fingerprint's keys are strings, not {odd[0]!r}")
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"a fingerprint cannot hold {type(value).__name__}")


def sha256_file(path: Path) -> str:
    """The SHA-256 of the file's content, in hex."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def sha256_files(paths: Sequence[Path]) -> list[str]:
    """The SHA-256 of each file, in order; a few are read at a time."""
    with ThreadPoolExecutor(_HASH_THREADS) as pool:
        return list(pool.map(sha256_file, paths))


def hash_files(
    folder: Path,
    patterns: Sequence[str] = ("**/*",),
    cache: Path | None = None,
    now_ns: Callable[[], int] = time.time_ns,
) -> dict[str, str]:
    """Relative path to SHA-256 of every file that a pattern names; what has not changed is taken from ``cache``.

    A cached hash counts while the file's device, inode, size, mtime and ctime are the same.

    Raises: ToolkitError when there is no such folder or no file matches.
    """
    paths = _matching(folder, patterns)
    known = _load_cache(cache)
    before_ns = now_ns()
    keys = {path: _key(path) for path in paths}
    fresh = [path for path in paths if known.get(str(path.absolute()), {}).get("key") != keys[path]]
    found = dict(zip(fresh, sha256_files(fresh), strict=True))
    if cache is not None and found:
        settled = {
            str(path.absolute()): {"key": keys[path], "sha256": digest}
            for path, digest in found.items()
            if keys[path] == _key(path) and path.stat().st_mtime_ns < before_ns - _SETTLED_NS
        }
        _save_cache(cache, {**_load_cache(cache), **settled})
    return {
        path.relative_to(folder).as_posix(): found.get(path) or known[str(path.absolute())]["sha256"] for path in paths
    }


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    if not folder.is_dir():
        raise ToolkitError("there is no such folder", str(folder), code="folder_missing")
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})
    if not paths:
        raise ToolkitError(f"holds no file like {', '.join(patterns)}", str(folder), code="files_missing")
    return paths


def _key(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _load_cache(cache: Path | None) -> dict[str, Any]:
    """The remembered hashes; a damaged cache remembers nothing, for it only saves time."""
    document = (json_object(cache) if cache is not None else None) or {}
    files = document.get("files") if document.get("schema") == _CACHE_SCHEMA else None
    rows = files.items() if isinstance(files, dict) else ()
    return {path: row for path, row in rows if isinstance(row, dict) and isinstance(row.get("sha256"), str)}


def _save_cache(cache: Path, files: Mapping[str, Any]) -> None:
    living = {path: row for path, row in files.items() if os.path.lexists(path)}
    # A store that cannot be written only costs the next boot its time.
    with suppress(ToolkitError), disk_errors(cache, "cannot remember hashes"):
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(cache, json.dumps({"schema": _CACHE_SCHEMA, "files": living}))
