"""Which TensorRT-LLM an engine is built with: from metadata, never by importing it. It picks the table of options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from toolkit.environments import layout, metadata
from toolkit.environments.model import Folder
from toolkit.errors import ToolkitError
from toolkit.facts import build_options, load
from toolkit.facts.model import FIRM
from toolkit.facts.options import OptionTable, build_tables

PACKAGE = "tensorrt-llm"
TENSORRT = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")


@dataclass(frozen=True)
class BuildRelease:
    """A release that builds engines. ``table``: its ``trtllm-build``; ``tensorrt``: what is installed beside it."""

    version: str
    table: OptionTable
    tensorrt: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of how firm the table is."""
        if self.table.status in FIRM:
            return ()
        text = f"options of trtllm-build {self.version} are {self.table.status}: read at {self.table.read_at}"
        return (f"{text} ({'; '.join(self.table.source)})",)


def build_release(version: str, where: str | None = None, tensorrt: str | None = None) -> BuildRelease:
    """The release with this version.

    Raises: ToolkitError when it is none, no engine can be built with it, or nothing is known of it.
    """
    try:
        found = Version(version)
    except InvalidVersion:
        hint = "Write it as pip shows it, such as 'tensorrt-llm 1.2.0'."
        raise ToolkitError(f"'{version}' is no version of TensorRT-LLM", where, hint, code="trtllm_version") from None
    table = build_options(found.public)
    if table is None:
        raise _no_engines(found, where)
    return BuildRelease(str(found), table, tensorrt)


@dataclass(frozen=True)
class Installed:
    """The versions of TensorRT-LLM and TensorRT in an environment; None: not there."""

    trtllm: str | None
    tensorrt: str | None


def versions(python: Path, environ: Mapping[str, str]) -> Installed:
    """What the environment of an interpreter holds, read from its dist-info."""
    found = layout.locate(python)
    folders, _ = layout.with_pth(layout.folders(found, environ))
    # An interpreter may be a script that starts another: what lies beside it counts then.
    beside = (Folder(path, "site") for path in sorted(python.parent.parent.glob("lib*/python3*/*-packages")))
    there = {each.name: each.version for each in metadata.distributions((*folders, *beside))[0]}
    return Installed(there.get(PACKAGE), next((there[name] for name in TENSORRT if there.get(name)), None))


def installed(python: Path, environ: Mapping[str, str]) -> BuildRelease:
    """The release in the environment of an interpreter.

    Raises: ToolkitError when there is none, or it builds no engines.
    """
    found = versions(python, environ)
    if found.trtllm is None:
        raise ToolkitError(
            "this environment has no TensorRT-LLM",
            str(python),
            "Name the environment that has it, or look at the commands with '--dry-run --trtllm-version V'.",
            code="packages",
        )
    return build_release(found.trtllm, str(python), found.tensorrt)


def known_releases() -> tuple[str, ...]:
    """The releases whose options were read, oldest first."""
    return tuple(str(row["versions"]).removeprefix("==") for row in build_tables()["tables"])


def last_release() -> str:
    """The last release with an engine mode."""
    return str(build_tables()["removed"]["versions"]).lstrip("<>=")


def _no_engines(found: Version, where: str | None) -> ToolkitError:
    first, last = known_releases()[0], last_release()
    if found < Version(first):
        what = f"nothing is known of trtllm-build in TensorRT-LLM {found}"
        hint = f"Engines are built with {first} up to {last}; install one of those in the engine's environment."
        return ToolkitError(what, where, hint, code="trtllm_version")
    row = load().trtllm(found.public)
    modes = row.fact("modes") if row else None
    known = "" if modes else f" (of {found} itself nothing was read)"
    return ToolkitError(
        f"TensorRT-LLM {found} builds no engines: trtllm-build was removed after {last}{known}",
        where,
        "Serve the model itself: in the service write 'model: PATH' instead of 'engine:' (PyTorch mode). "
        f"Or build in an environment with tensorrt-llm {last} or older.",
        code="no_engine_mode",
    )
