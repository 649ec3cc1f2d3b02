"""An environment, read whole: layout, packages, conflicts, torch. Nothing in it is imported or run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from toolkit.environments import layout as layouts
from toolkit.environments import metadata, requirements, scripts, torch_files
from toolkit.environments.loader import Files
from toolkit.environments.model import Distribution, Environment, Folder, Layout, Problem, TorchFacts


def read(
    python_or_folder: Path,
    *,
    environ: Mapping[str, str] | None = None,
    ld_library_path: str | None = None,
    files: Files | None = None,
) -> Environment:
    """What the environment of a Python executable, a venv or conda folder, or a folder of packages holds.

    ``environ``: the variables its process will have: PYTHONPATH, HOME and their kind, LD_LIBRARY_PATH, LD_PRELOAD.
    ``ld_library_path`` wins over the one in there. What is broken or missing is in ``problems``, never raised.
    """
    environ = environ or {}
    layout = layouts.locate(python_or_folder)
    folders, pth_problems = layouts.with_pth(layouts.folders(layout, environ))
    found, problems = metadata.distributions(folders)
    folders += tuple(_editable_folders(found, folders))
    torch = _torch(tuple(folder.path for folder in folders), files or Files())
    return Environment(
        layout,
        folders,
        found,
        requirements.conflicts(found, layout),
        torch,
        metadata.conda_packages(layout.prefix) if layout.kind == "conda" else (),
        tuple(scripts.installed(found, layout)),
        (
            *layout.problems,
            *_no_folder(layout, folders),
            *pth_problems,
            *problems,
            *requirements.unreadable(found),
            *_torch_differs(found, torch),
        ),
        ld_library_path if ld_library_path is not None else environ.get("LD_LIBRARY_PATH") or None,
        tuple(Path(entry) for entry in re.split(r"[ :]+", environ.get("LD_PRELOAD", "")) if entry),
    )


def _editable_folders(found: tuple[Distribution, ...], known: tuple[Folder, ...]) -> Iterator[Folder]:
    """Source folders that a finder makes importable; their own metadata is not what is installed."""
    places = (place for d in found if d.editable for place in (d.editable / "src", d.editable))
    taken = {folder.path for folder in known}
    yield from (Folder(place, "editable") for place in places if place not in taken and layouts.is_folder(place))


def _no_folder(layout: Layout, folders: tuple[object, ...]) -> Iterator[Problem]:
    if layout.kind != "missing" and not folders:
        yield Problem("site_folder_missing", layout.prefix.name, layout.prefix)


def _torch(folders: tuple[Path, ...], files: Files) -> TorchFacts | None:
    """The torch that ``import torch`` takes: the first with an ``__init__.py``."""
    found = next((folder / "torch" for folder in folders if (folder / "torch/__init__.py").is_file()), None)
    return torch_files.read(found, files) if found else None


def _torch_differs(found: tuple[Distribution, ...], torch: TorchFacts | None) -> Iterator[Problem]:
    """Metadata of one torch beside the files of another."""
    stated = next((d for d in found if d.name == "torch"), None)
    if stated and torch and torch.version and not _same(stated.version, torch.version):
        yield Problem("torch_version_differs", "torch", torch.folder, f"{stated.version} and {torch.version}")


def _same(one: str | None, other: str) -> bool:
    try:
        first, second = Version(one or ""), Version(other)
    except InvalidVersion:
        return True
    return first.public == second.public and (not first.local or not second.local or first.local == second.local)
