"""``manifest.json`` of an engine folder: what it is and every file of it. It is written last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.files import fsync, read_json, write_atomic
from toolkit.store.hashes import sha256_files

NAME = "manifest.json"
USE_LOCK = ".use.lock"
SCHEMA = 1
_OURS = (NAME, USE_LOCK)
_REBUILD = "Build it again with 'coexist build --force'."
_FILE_KEYS = {"size": int, "mtime_ns": int, "inode": int, "sha256": str}


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a stored file."""

    path: Path
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None when it has none, which means it was never finished.

    Raises: ToolkitError when it is damaged, or newer than this coexist understands.
    """
    path = folder / NAME
    document = read_json(path, default=None, hint=_REBUILD)
    return None if document is None else validated(document, path)


def validated(document: Any, path: Path) -> dict[str, Any]:
    """The same document, known to be a manifest; ``path`` is for messages.

    Raises: ToolkitError when it is none, or newer than this coexist understands.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ToolkitError(
            f"was written by a newer coexist (schema {schema}; this one reads {SCHEMA})",
            str(path),
            "Update coexist, or use another COEXIST_HOME.",
            code="manifest_too_new",
        )
    if schema != SCHEMA or not _is_whole(document):
        raise ToolkitError("is no manifest of an engine", str(path), _REBUILD, code="engine_damaged")
    return dict(document)


def _is_whole(document: Mapping[str, Any]) -> bool:
    files = document.get("files")
    named = all(isinstance(document.get(key), str) for key in ("name", "fingerprint"))
    return named and isinstance(document.get("build"), dict) and isinstance(files, dict) and _are_rows(files)


def _are_rows(files: Mapping[str, Any]) -> bool:
    return all(
        isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in _FILE_KEYS.items())
        for row in files.values()
    ) and all(map(_stays_inside, files))


def _stays_inside(relative: str) -> bool:
    path = PurePosixPath(relative)
    return not path.is_absolute() and ".." not in path.parts


def seal(folder: Path, name: str, fingerprint: str, build: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The manifest now written into the folder, after every file and folder has reached the disk."""
    (folder / USE_LOCK).touch()
    files = describe(folder)
    for path in folder.rglob("*"):
        fsync(path)
    document = {
        "schema": SCHEMA,
        "name": name,
        "fingerprint": fingerprint,
        "seconds": round(seconds, 3),
        "build": dict(build),
        "files": files,
    }
    write(folder, document)
    return document


def write(folder: Path, document: Mapping[str, Any]) -> None:
    write_atomic(folder / NAME, json.dumps(document, indent=1, sort_keys=True) + "\n", mode=0o644)


def describe(folder: Path) -> dict[str, dict[str, Any]]:
    """Relative path to size, mtime_ns, inode and SHA-256 of every file.

    Raises: ToolkitError for a symbolic link: an engine must be whole by itself.
    """
    paths = list(content(folder))
    if linked := next((folder / path for path in paths if (folder / path).is_symlink()), None):
        raise ToolkitError("an engine cannot hold a symbolic link", str(linked), "Copy the file.", code="symlink")
    hashes = sha256_files([folder / path for path in paths])
    return {path: {**stamp(folder / path), "sha256": digest} for path, digest in zip(paths, hashes, strict=True)}


def content(folder: Path) -> Iterator[str]:
    """Relative paths of the engine's own files (and links), sorted."""
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if (path.is_file() or path.is_symlink()) and relative not in _OURS:
            yield relative


def stamp(path: Path) -> dict[str, int]:
    """What changes when a file is written or replaced: size, mtime_ns, inode."""
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}


def check(folder: Path, document: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Files that are missing or were touched since publishing, by size, mtime and inode: fast, reads no content."""
    faults = []
    for relative, row in document["files"].items():
        path = folder / relative
        try:
            changed = [f"{key} {row[key]} is now {now}" for key, now in stamp(path).items() if row[key] != now]
        except (FileNotFoundError, NotADirectoryError):
            faults.append(Fault(path, "is missing"))
            continue
        if changed:
            faults.append(Fault(path, ", ".join(changed)))
    return tuple(faults)


def verify(folder: Path, document: Mapping[str, Any]) -> tuple[Fault, ...]:
    """Files whose content is not what was published, by full hashes; missing and added files too."""
    files = document["files"]
    present = [relative for relative in files if (folder / relative).is_file()]
    hashes = sha256_files([folder / relative for relative in present])
    changed = [
        Fault(folder / relative, "the content is not what was published (SHA-256 differs)")
        for relative, digest in zip(present, hashes, strict=True)
        if digest != files[relative]["sha256"]
    ]
    missing = [Fault(folder / relative, "is missing") for relative in files if relative not in present]
    added = [
        Fault(folder / relative, "is not in the manifest") for relative in content(folder) if relative not in files
    ]
    return (*changed, *missing, *added)


def restamped(folder: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """The same manifest with the size, mtime and inode that the files have now (after a copy or a restore)."""
    files = {relative: {**row, **stamp(folder / relative)} for relative, row in document["files"].items()}
    return {**document, "files": files}
