"""Installed distributions, from their dist-info and egg-info; nothing of theirs is imported."""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from toolkit.environments.layout import is_folder
from toolkit.environments.model import CondaPackage, Distribution, EntryPoint, Folder, Problem
from toolkit.files import json_object

MAX_HEADER_BYTES, MAX_RECORD_BYTES = 4 << 20, 64 << 20
SUFFIXES = (".dist-info", ".egg-info")
HEADER_FILES = ("METADATA", "PKG-INFO")


class _BrokenError(Exception):
    """This metadata can't be used; never leaves this module."""


def distributions(folders: Iterable[Folder]) -> tuple[tuple[Distribution, ...], tuple[Problem, ...]]:
    """The distributions that ``import`` finds, sorted by name, and what is wrong with metadata or hidden by others."""
    problems: list[Problem] = []
    found: dict[str, Distribution] = {}
    for folder in folders:
        here: dict[str, Distribution] = {}
        for distribution in _in_folder(folder.path, problems):
            _keep_newest(here, distribution, problems)
        for name, distribution in here.items():
            first = found.setdefault(name, distribution)
            if first is not distribution:
                detail = f"{distribution.version} behind {first.version} in {first.folder}"
                problems.append(Problem("shadowed_distribution", name, distribution.metadata, detail))
    return tuple(found[name] for name in sorted(found)), tuple(problems)


def _keep_newest(here: dict[str, Distribution], new: Distribution, problems: list[Problem]) -> None:
    """Two of one name in one folder: an install over another, where the newer one's files were written last."""
    old = here.get(new.name)
    if old is None:
        here[new.name] = new
        return
    if old.version == new.version and {old.metadata.suffix, new.metadata.suffix} == {".dist-info", ".egg-info"}:
        here[new.name] = old if old.metadata.suffix == ".dist-info" else new
        return
    first, last = sorted((old, new), key=lambda d: (_comparable(d.version), d.metadata.name))
    problems.append(Problem("duplicate_metadata", new.name, first.metadata, f"{first.version} and {last.version}"))
    here[new.name] = last


def _comparable(version: str | None) -> Version:
    try:
        return Version(version or "0")
    except InvalidVersion:
        return Version("0")


def _in_folder(folder: Path, problems: list[Problem]) -> Iterator[Distribution]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return
    for name in names:
        if name.startswith("~"):
            problems.append(Problem("uninstall_leftover", name, folder / name))
        elif name.endswith(SUFFIXES):
            yield from _one(folder, folder / name, problems)


def _one(folder: Path, metadata: Path, problems: list[Problem]) -> Iterator[Distribution]:
    try:
        yield _read(folder, metadata, problems)
    except _BrokenError as error:
        problems.append(Problem("metadata_broken", metadata.name, metadata, str(error)))


def _read(folder: Path, metadata: Path, problems: list[Problem]) -> Distribution:
    headers = _headers(metadata)
    name, version = headers.get("Name"), headers.get("Version")
    if not name or not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name.strip()):
        raise _BrokenError("no usable name")
    if version is None:
        raise _BrokenError("no version")
    origin = json_object(metadata / "direct_url.json") or {}
    editable = _editable(origin)
    normal = str(canonicalize_name(name.strip()))
    if editable and not is_folder(editable):
        problems.append(Problem("editable_missing", normal, editable))
    return Distribution(
        normal,
        version.strip(),
        metadata,
        folder,
        tuple(_requires(metadata, headers)),
        headers.get("Requires-Python"),
        tuple(str(canonicalize_name(extra)) for extra in headers.get_all("Provides-Extra", [])),
        _entry_points(metadata / "entry_points.txt"),
        editable,
        _url(origin),
    )


def _headers(metadata: Path) -> Message:
    """The headers alone; the description that follows can be long."""
    places = [metadata / name for name in HEADER_FILES] if metadata.is_dir() else [metadata]
    texts = [text for text in map(_read_text, places) if text]
    if not texts:
        raise _BrokenError("no METADATA")
    # A line of blanks alone continues a header: scipy's licence has some.
    head = texts[0].replace("\r\n", "\n").partition("\n\n")[0]
    return HeaderParser().parsestr(head)


def _requires(metadata: Path, headers: Message) -> Iterator[str]:
    stated = headers.get_all("Requires-Dist", [])
    if stated:
        yield from (" ".join(line.split()) for line in stated)
    elif metadata.suffix == ".egg-info":
        yield from egg_requires(_read_text(metadata / "requires.txt") or "")


def egg_requires(text: str) -> Iterator[str]:
    """The requirements in setuptools' old requires.txt, as Requires-Dist would say them."""
    condition = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            extra, _, marker = line[1:-1].partition(":")
            parts = [f"({marker})"] if marker else []
            condition = " and ".join([*parts, f'extra == "{extra}"'] if extra else parts)
        elif line and not line.startswith("#"):
            yield f"{line} ; {condition}" if condition else line


class _EntryPointParser(configparser.ConfigParser):
    """Names keep their case."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def _entry_points(path: Path) -> tuple[EntryPoint, ...]:
    text = _read_text(path)
    if not text:
        return ()
    parser = _EntryPointParser(delimiters=("=",), interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return ()
    return tuple(EntryPoint(group, name, value) for group in parser.sections() for name, value in parser.items(group))


def _editable(origin: dict[str, Any]) -> Path | None:
    info = origin.get("dir_info")
    url = origin.get("url")
    if isinstance(info, dict) and info.get("editable") is True and isinstance(url, str):
        parts = _split(url)
        return Path(unquote(parts.path)) if parts else None
    return None


def _url(origin: dict[str, Any]) -> str | None:
    url = origin.get("url")
    parts = _split(url) if isinstance(url, str) else None
    if parts is None:
        return None
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # credentials stay out


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # brackets that hold no address
        return None


def record_text(distribution: Distribution) -> str:
    """The installer's list of files (RECORD); empty where it wrote none."""
    text = _read_text(distribution.metadata / "RECORD", MAX_RECORD_BYTES) or ""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")  # no name of a file has a NUL


def conda_packages(prefix: Path) -> tuple[CondaPackage, ...]:
    """What conda says it installed, sorted by name; its records are named ``NAME-VERSION-BUILD.json``."""
    parts = (path.stem.rsplit("-", 2) for path in sorted((prefix / "conda-meta").glob("*-*-*.json")))
    return tuple(CondaPackage(name, version, build) for name, version, build in parts)


def _read_text(path: Path, limit_bytes: int = MAX_HEADER_BYTES) -> str | None:
    try:
        if not path.is_file():  # a pipe would be waited for without end
            return None
        with path.open("rb") as file:
            return file.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return None
