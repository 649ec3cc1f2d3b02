"""Where the parts of an environment lie, from a Python executable or a folder. Runs nothing.

Source: CPython's Modules/getpath.py and Lib/site.py; Debian's patch of site.py; PEP 405.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from toolkit.environments import elf, symbols
from toolkit.environments.elf import DamagedError, FileReader
from toolkit.environments.model import Folder, FolderKind, Layout, Problem, ProblemKind

_RELEASE = re.compile(r"(?:lib)?python(3\.\d+)")
_OLD_NAME = re.compile(r"python2(\.\d+)?")
_CPYTHON_TAG = re.compile(r"\.cpython-3(\d+)-")
MAX_CONFIG_BYTES = 64 << 10


def locate(path: Path) -> Layout:
    """The layout around a Python executable, an environment's folder, or a folder of packages."""
    path = Path(os.path.abspath(path))  # noqa: PTH100  symlinks must stay: a venv's python is one
    try:
        if path.is_dir():
            return _locate_folder(path)
        if path.is_file():
            return _locate_executable(path)
        why = ""
    except OSError as error:
        why = error.strerror or "unreadable"
    return Layout("missing", path.parent, problems=(Problem("interpreter_missing", path.name, path, why),))


def _locate_folder(folder: Path) -> Layout:
    if (folder / "pyvenv.cfg").is_file():
        return _venv(folder, folder / "pyvenv.cfg", _python_in(folder / "bin"))
    executable = _python_in(folder / "bin")
    if executable:
        return _locate_executable(executable)
    problems = () if _has_packages(folder) else (Problem("nothing_installed", folder.name, folder),)
    return Layout("folder", folder, python_version=_release_of_packages(folder), problems=problems)


def _has_packages(folder: Path) -> bool:
    """Whether anything here is what an installer leaves, or can be imported."""
    patterns = ("*.dist-info", "*.egg-info", "*/__init__.py", "*.py", "*.so", "*/*.so", "*/*/*.so")
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def _python_in(folder: Path) -> Path | None:
    return next((folder / name for name in ("python", "python3") if (folder / name).exists()), None)


def _locate_executable(executable: Path) -> Layout:
    for folder in (executable.parent, executable.parent.parent):
        if (folder / "pyvenv.cfg").is_file():
            return _venv(folder, folder / "pyvenv.cfg", executable)
    found = _installation(executable)
    place = executable.parent.parent
    if executable.is_symlink() and (executable.parent / "activate").is_file() and found.prefix != place:
        problem = Problem("venv_config_missing", place.name, place / "pyvenv.cfg")
        return replace(found, problems=(*found.problems, problem))
    return found


def _venv(prefix: Path, config: Path, executable: Path | None) -> Layout:
    settings = _settings(config)
    base = _base_of(settings, executable)
    version = settings.get("version") or settings.get("version_info") or ""
    match = re.match(r"3(?:\.\d+){1,2}", version)
    releases = _releases(prefix)
    python_version = match[0] if match else (base.python_version if base else next(iter(releases), None))
    problems = base.problems if base else (_no_base(prefix, config, settings),)
    if executable is None and base:
        problems += (Problem("interpreter_missing", "python", prefix / "bin/python"),)
    return Layout(
        "venv",
        prefix,
        executable,
        base.prefix if base else None,
        base.executable if base else None,
        python_version,
        base.machine if base else None,
        settings.get("include-system-site-packages", "").lower() == "true",
        problems,
    )


def _no_base(prefix: Path, config: Path, settings: Mapping[str, str]) -> Problem:
    return Problem("base_interpreter_missing", prefix.name, config, settings.get("home", ""))


def _settings(config: Path) -> dict[str, str]:
    lines = _text(config, MAX_CONFIG_BYTES).splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _base_of(settings: Mapping[str, str], executable: Path | None) -> Layout | None:
    """The installation a venv was made from: what its python links to, else what its file says."""
    places = [executable.resolve()] if executable and executable.is_symlink() else []
    if "executable" in settings:
        places.append(Path(settings["executable"]))
    if "home" in settings:
        home = Path(settings["home"])
        names = [executable.name] if executable else []
        places += [home / name for name in (*names, "python3", "python")]
    found = next((place for place in places if place.is_file()), None)
    return _installation(found) if found else None


def _installation(executable: Path) -> Layout:
    """The layout of a Python that is no venv: conda's, the system's, or one of its own."""
    real = executable.resolve()
    prefix = _prefix_of(real)
    file = elf.read(real)
    kind = _no_interpreter(real)
    if kind:
        return Layout("missing", prefix, executable, problems=(Problem(kind, executable.name, real),))
    layout = Layout("conda" if (prefix / "conda-meta").is_dir() else "system", prefix, executable, prefix, executable)
    return replace(layout, python_version=_version(real, file, prefix), machine=file.machine)


def _prefix_of(real: Path) -> Path:
    """The nearest folder above that has the library of this very release, if the file's name tells one."""
    named = _RELEASE.fullmatch(real.name)
    for folder in real.parents:
        releases = _releases(folder)
        if releases and (named is None or named[1] in releases):
            return folder
    return real.parent.parent


def _no_interpreter(real: Path) -> ProblemKind | None:
    """Why a file cannot be a Python 3; None: it may be one."""
    if _starts_with(real, b"#!"):
        return "interpreter_is_script"
    if not _starts_with(real, b"\x7fELF"):
        return "interpreter_not_a_program"
    return "interpreter_too_old" if _OLD_NAME.fullmatch(real.name) else None


def _version(real: Path, file: elf.ElfFile, prefix: Path) -> str | None:
    named = _RELEASE.fullmatch(real.name)
    return (
        _version_inside(file, prefix)
        or _conda_version(prefix)
        or (named[1] if named else None)
        or next(iter(_releases(prefix)), None)
    )


def _version_inside(file: elf.ElfFile, prefix: Path) -> str | None:
    """The number in ``Py_Version``, which Python exports since 3.11."""
    for place in (file.path, *(prefix / "lib" / name for name in file.needed if name.startswith("libpython"))):
        table = symbols.read(elf.read(place))
        found = table.value("Py_Version")
        if found:
            return _hex_version(table.file, found[0])
    return None


def _hex_version(file: elf.ElfFile, address: int) -> str | None:
    try:
        with FileReader(file.path) as reader:
            number = int.from_bytes(reader.at(file.offset(address), 4), "little")
    except (OSError, DamagedError):
        return None
    return f"{number >> 24}.{number >> 16 & 0xFF}.{number >> 8 & 0xFF}" if number >> 24 == 3 else None


def _conda_version(prefix: Path) -> str | None:
    names = (path.name for path in sorted((prefix / "conda-meta").glob("python-3.*.json")))
    matches = (re.match(r"python-(3\.\d+\.\d+)-", name) for name in names)
    return next((match[1] for match in matches if match), None)


def _releases(prefix: Path) -> tuple[str, ...]:
    """Python releases with a library folder here, newest first."""
    found = {match[1] for path in prefix.glob("lib*/python3.*") if (match := _RELEASE.fullmatch(path.name))}
    return tuple(sorted(found, key=lambda release: int(release.split(".")[1]), reverse=True))


def _release_of_packages(folder: Path) -> str | None:
    """The release that a folder of packages is for: by its parent's name, or by its compiled files."""
    named = _RELEASE.fullmatch(folder.parent.name)
    if named:
        return named[1]
    for pattern in ("*.so", "*/*.so", "*/*/*.so"):
        for path in folder.glob(pattern):
            tag = _CPYTHON_TAG.search(path.name)
            if tag:
                return f"3.{tag[1]}"
    return None


def folders(layout: Layout, environ: Mapping[str, str]) -> tuple[Folder, ...]:
    """The folders of packages by ``sys.path`` order, .pth files left aside.

    ``environ``: the role's own variables; PYTHONPATH, PYTHONNOUSERSITE, PYTHONUSERBASE and HOME count.
    """
    if layout.kind == "missing":
        return ()
    given = [Path(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    found = [Folder(path, "pythonpath") for path in given]
    if layout.kind == "folder":
        found.append(Folder(layout.prefix, "target"))
    elif layout.kind == "venv":
        found += _own_folders(layout.prefix, layout.release)
        if layout.system_site and layout.base_prefix:
            found += [*_user_folder(layout, environ), *_base_folders(layout.base_prefix, layout.release)]
    else:
        found += [*_user_folder(layout, environ), *_base_folders(layout.prefix, layout.release)]
    return tuple(_once(folder for folder in found if is_folder(folder.path)))


def _own_folders(prefix: Path, release: str | None) -> Iterator[Folder]:
    for name in ("lib", "lib64"):
        yield Folder(prefix / name / f"python{release}" / "site-packages", "site")


def _base_folders(prefix: Path, release: str | None) -> Iterator[Folder]:
    if (prefix / "lib/python3/dist-packages").is_dir():  # Debian and its children
        places = (f"local/lib/python{release}", "lib/python3", f"lib/python{release}")
        yield from (Folder(prefix / place / "dist-packages", "dist") for place in places)
    yield from _own_folders(prefix, release)


def _user_folder(layout: Layout, environ: Mapping[str, str]) -> Iterator[Folder]:
    home = environ.get("HOME")
    base = environ.get("PYTHONUSERBASE") or (f"{home}/.local" if home else None)
    if base and not environ.get("PYTHONNOUSERSITE"):
        yield Folder(Path(base) / "lib" / f"python{layout.release}" / "site-packages", "user")


def _once(found: Iterator[Folder]) -> Iterator[Folder]:
    """Each folder at its first place; lib64 is often a link to lib."""
    seen: set[Path] = set()
    for folder in found:
        real = folder.path.resolve()
        if real not in seen:
            seen.add(real)
            yield folder


def with_pth(found: tuple[Folder, ...]) -> tuple[tuple[Folder, ...], tuple[Problem, ...]]:
    """The folders with those that .pth files add behind each, and what those files hold besides paths."""
    problems: list[Problem] = []
    both: list[Folder] = []
    for folder in found:
        both.append(folder)
        if folder.kind not in {"pythonpath", "target"}:
            for pth in sorted(folder.path.glob("*.pth")):
                both += _read_pth(pth, problems)
    return tuple(_once(iter(both))), tuple(problems)


def _read_pth(pth: Path, problems: list[Problem]) -> Iterator[Folder]:
    kind: FolderKind = "pth"
    for line in _text(pth, MAX_CONFIG_BYTES).splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if text.startswith(("import ", "import\t")):
            problems.append(Problem("pth_import", pth.name, pth, text[:200]))
            continue
        place = pth.parent / text
        if is_folder(place):
            yield Folder(place, kind, pth)
        else:
            problems.append(Problem("pth_folder_missing", pth.name, pth, text[:200]))


def is_folder(path: Path) -> bool:
    """Whether a folder is there for us; one we may not look at is not."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _text(path: Path, limit_bytes: int) -> str:
    try:
        if not path.is_file():  # a pipe would be waited for without end
            return ""
        with path.open("rb") as file:
            return file.read(limit_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def _starts_with(path: Path, start: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False
