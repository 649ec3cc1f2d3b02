"""What a Python environment holds, as frozen records. Unknown is None and is never guessed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from toolkit.demangle import Abi

Kind = Literal["venv", "conda", "system", "folder", "missing"]
FolderKind = Literal["pythonpath", "user", "site", "dist", "pth", "target", "editable"]
ProblemKind = Literal[
    "interpreter_missing",
    "interpreter_is_script",
    "interpreter_not_a_program",
    "interpreter_too_old",
    "venv_config_missing",
    "nothing_installed",
    "base_interpreter_missing",
    "site_folder_missing",
    "metadata_broken",
    "requirement_invalid",
    "duplicate_metadata",
    "shadowed_distribution",
    "uninstall_leftover",
    "pth_import",
    "pth_folder_missing",
    "editable_missing",
    "torch_version_differs",
]


@dataclass(frozen=True)
class Problem:
    """Something in the environment that is not as an installer leaves it; ``detail`` is data, not advice."""

    kind: ProblemKind
    subject: str
    path: Path | None = None
    detail: str = ""


@dataclass(frozen=True)
class Layout:
    """Where an environment lies. ``python_version``: as exact as its files tell, ``3.11.7`` or ``3.11``."""

    kind: Kind
    prefix: Path
    executable: Path | None = None
    base_prefix: Path | None = None
    base_executable: Path | None = None
    python_version: str | None = None
    machine: str | None = None
    system_site: bool = False
    problems: tuple[Problem, ...] = ()

    @property
    def release(self) -> str | None:
        """The Python release that names folders: ``3.11``."""
        return ".".join(self.python_version.split(".")[:2]) if self.python_version else None


@dataclass(frozen=True)
class Folder:
    """An entry of ``sys.path``; ``source``: the .pth file that added it. ``editable``: a finder's, not an entry."""

    path: Path
    kind: FolderKind
    source: Path | None = None


@dataclass(frozen=True)
class EntryPoint:
    """One entry of ``entry_points.txt``."""

    group: str
    name: str
    value: str


@dataclass(frozen=True)
class Script:
    """A program that a distribution installs; ``path`` None: it is not there.

    ``interpreter``: the Python its first line names, as written; None: it names none.
    """

    name: str
    distribution: str
    path: Path | None
    interpreter: Path | None = None


@dataclass(frozen=True)
class Distribution:
    """One installed distribution. ``name`` is normalised, ``requires`` as written.

    ``folder``: the ``sys.path`` entry it is in. ``editable``: the source folder of an editable install. ``source_url``:
    where an installer says it came from.
    """

    name: str
    version: str | None
    metadata: Path
    folder: Path
    requires: tuple[str, ...] = ()
    requires_python: str | None = None
    extras: tuple[str, ...] = ()
    entry_points: tuple[EntryPoint, ...] = ()
    editable: Path | None = None
    source_url: str | None = None


@dataclass(frozen=True)
class Conflict:
    """A requirement that the environment does not meet; ``found`` None: the distribution is not there.

    ``requirement`` is as written in ``required_by``; for ``python`` it is what Requires-Python says.
    """

    required_by: str
    requirement: str
    name: str
    found: str | None


@dataclass(frozen=True)
class TorchFacts:
    """What torch's own files say. ``cuda`` is None for a build without CUDA; ``libraries`` are its bundled files.

    ``cxx11_abi``: from what libc10 exports, not from a name. ``cuda_linked``: the major version of the CUDA runtime
    its libraries need.
    """

    folder: Path
    version: str | None = None
    cuda: str | None = None
    cxx11_abi: Abi | None = None
    cuda_linked: int | None = None
    libraries: tuple[Path, ...] = ()


@dataclass(frozen=True)
class CondaPackage:
    """A package that conda installed, Python or not."""

    name: str
    version: str
    build: str


@dataclass(frozen=True)
class Environment:
    """One Python environment as its process would see it.

    ``folders``: ``sys.path`` without the standard library, in order. ``distributions``: those that ``import`` finds,
    by name; what they hide is in ``problems``. ``library_path``: the role's LD_LIBRARY_PATH as given.
    """

    layout: Layout
    folders: tuple[Folder, ...] = ()
    distributions: tuple[Distribution, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    torch: TorchFacts | None = None
    conda: tuple[CondaPackage, ...] = ()
    scripts: tuple[Script, ...] = ()
    problems: tuple[Problem, ...] = ()
    library_path: str | None = None
    preload: tuple[Path, ...] = field(default=())

    def find(self, name: str) -> Distribution | None:
        """The distribution of a normalised name."""
        return next((d for d in self.distributions if d.name == name), None)

    def package_folder(self, package: str) -> Path | None:
        """The folder that ``import package`` would take, by ``sys.path`` order."""
        places = (folder.path / package for folder in self.folders)
        return next((place for place in places if place.is_dir()), None)
