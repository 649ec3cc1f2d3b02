"""A server program that is a Python package: what its environment's files say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.facts.options import Option, OptionTable
from toolkit.runtimes import argument_source
from toolkit.runtimes.argument_source import Source
from toolkit.runtimes.base import Context, Program

ReadOptions = Callable[[Source], Iterable[Option]]


def program(
    name: str,
    environment: Environment | None,
    python: Path,
    declared: Mapping[str, str],
    *,
    files: Iterable[str],
    read: ReadOptions,
) -> Program:
    """The program of a package that is called as its distribution; ``read``: its options from ``files`` in there.

    ``executable`` is the interpreter. ``version`` None with origin ``installed``: it is not there.
    """
    if environment is None:
        return _unseen(name, python, declared)
    found, folder = environment.find(name), environment.package_folder(name)
    packages = {each.name: each.version or "" for each in environment.distributions}
    version = found.version if found is not None else None
    options = _table(name, version, folder, files, read) if version and folder else None
    return Program(name, version, python, "installed", options, packages, tuple(_notes(name, version, options)))


def _unseen(name: str, python: Path, declared: Mapping[str, str]) -> Program:
    version = declared.get(name)
    if version is None:
        note = f"the release of {name} is not known here: its options are passed on unchecked"
        return Program(name, None, python, "assumed", None, dict(declared), (note,))
    note = f"the options of {name} {version} cannot be read here: they are passed on unchecked"
    return Program(name, version, python, "declared", None, dict(declared), (note,))


def _table(name: str, version: str, folder: Path, files: Iterable[str], read: ReadOptions) -> OptionTable | None:
    options = {option.name: option for option in read(argument_source.source(folder, files))}
    source = (f"{folder} of {name} {version}",)
    return OptionTable(name, version, version, "installed", source, options) if options else None


def _notes(name: str, version: str | None, options: OptionTable | None) -> Iterable[str]:
    if version is not None and options is None:
        yield f"no definitions of options were found in {name} {version}: they are passed on unchecked"


def of(context: Context) -> Program:
    """The program of a launch.

    Raises: ToolkitError when it is not installed.
    """
    found = context.program
    if found is None:
        name = context.service.runtime
        return Program(name, None, context.python, "assumed")
    if found.version is None and found.origin == "installed":
        raise ToolkitError(
            f"{found.name} is not installed in the environment of {context.python}",
            f"services.{context.name}.environment",
            "Install it there, or name the environment that has it; 'coexist check' lists what each holds.",
            code="no_program",
        )
    return found


def has(found: Program, option: str) -> bool | None:
    """Whether the release has an option; None: its definitions are not known."""
    return None if found.options is None else found.options.find(option) is not None
