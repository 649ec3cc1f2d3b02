"""Options of ``trtllm-build`` and ``trtllm-serve`` by release, read on first use."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from toolkit.facts.load import HERE, parse
from toolkit.facts.model import version, within


@dataclass(frozen=True)
class Option:
    """One option. ``choices`` None: any value; ``open_choices``: the release has more than a source tells.

    ``kind``: str, int, float, json (a mapping) or flag (which takes no value); None: not told. ``plugin``: takes
    enable, disable or a data type. ``unsure``: why its presence or form is in doubt. ``negation``: what switches a
    flag off.
    """

    name: str
    kind: str | None = None
    choices: tuple[str, ...] | None = None
    default: Any = None
    aliases: tuple[str, ...] = ()
    many: bool = False
    plugin: bool = False
    open_choices: bool = False
    unsure: str | None = None
    negation: str | None = None


@dataclass(frozen=True)
class OptionTable:
    """All options of one command. ``read_at``: the text they were read in; ``status``: how firm that is here."""

    command: str
    release: str
    read_at: str
    status: str
    source: tuple[str, ...]
    options: Mapping[str, Option]

    def find(self, name: str) -> Option | None:
        """The option of a name or alias, with its dashes."""
        return self.options.get(name) or next((o for o in self.options.values() if name in o.aliases), None)


@functools.lru_cache(maxsize=1)
def build_tables() -> Any:
    """The whole table of ``trtllm-build``: tables, unsure, attention, constraints, conflicts."""
    return parse((HERE / "trtllm_build.yaml").read_bytes())


@functools.lru_cache(maxsize=1)
def serve_tables() -> Any:
    """The whole table of ``trtllm-serve``: types, defaults, tables, attention_backend, conflicts."""
    return parse((HERE / "trtllm_serve.yaml").read_bytes())


@functools.lru_cache(maxsize=64)
def build_options(release: str) -> OptionTable | None:
    """Options of ``trtllm-build`` of a release; None where it has no such command or nothing older was read."""
    tables = build_tables()
    if within(release, tables["removed"]["versions"]) is not False:
        return None
    row = _newest(tables["tables"], release)
    if row is None:
        return None
    doubts = {u["option"]: u["why"] for u in tables["unsure"] if within(release, f"=={u['release']}")}
    options = {name: _option(name, each, doubts.get(name)) for name, each in _folded(tables["tables"], row).items()}
    return _table("trtllm-build", release, row, options)


def _folded(rows: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, dict[str, Any]]:
    base = next((each for each in rows if each["read_at"] == row.get("based_on")), None)
    before = _folded(rows, base) if base else {}
    gone = set(row.get("remove", ()))
    return {**{name: each for name, each in before.items() if name not in gone}, **(row.get("set") or {})}


def _option(name: str, row: Mapping[str, Any], unsure: str | None) -> Option:
    return Option(
        name,
        row.get("type"),
        tuple(map(str, row["choices"])) if "choices" in row else None,
        row.get("default"),
        tuple(row.get("aliases", ())),
        row.get("nargs") == "+",
        row.get("group") == "plugin",
        bool(row.get("open_choices")),
        unsure,
    )


@functools.lru_cache(maxsize=64)
def serve_options(release: str, command: str = "serve") -> OptionTable | None:
    """Options of ``trtllm-serve COMMAND`` of a release; None where nothing as old was read."""
    tables = serve_tables()
    row = _newest([each for each in tables["tables"] if each["command"] == command], release)
    if row is None:
        return None
    return _table(f"trtllm-serve {command}", release, row, {o.name: o for o in _serve(tables, row)})


def _serve(tables: dict[str, Any], row: dict[str, Any]) -> list[Option]:
    defaults = {**(tables["defaults"] if row["command"] == "serve" else {}), **row.get("defaults", {})}
    kinds = {name: kind for kind, names in tables["types"].items() if kind != "source" for name in names}
    found = []
    for names in row["names"]:
        name = next((each for each in names if each in kinds), names[-1])
        choices = next((row["choices"][each] for each in names if each in row.get("choices", {})), None)
        default = next((defaults[each] for each in names if each in defaults), None)
        aliases = tuple(each for each in names if each != name)
        loose = name in row.get("open_choices", ())
        found.append(
            Option(name, kinds.get(name), tuple(choices) if choices else None, default, aliases, open_choices=loose)
        )
    return found


def _newest(rows: list[dict[str, Any]], release: str) -> dict[str, Any] | None:
    """The table of the newest release up to this one."""
    wanted = version(release)
    older = [row for row in rows if wanted and Version(row["versions"].removeprefix("==")) <= wanted]
    return max(older, key=lambda row: Version(row["versions"].removeprefix("=="))) if older else None


def _table(command: str, release: str, row: dict[str, Any], options: Mapping[str, Option]) -> OptionTable:
    status = row["status"] if within(release, row["versions"]) else "inferred"
    return OptionTable(command, release, str(row["read_at"]), status, tuple(row["source"]), options)
