"""Tables for plan, build and the engine store, from their JSON documents alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table

from toolkit.units import MIB, format_bytes, format_duration


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, header_style="bold", overflow="fold")
    return table


def plan(document: Mapping[str, Any]) -> Group:
    """Services in start order, the memory ledger, command lines and notes."""
    parts: list[Any] = [_services(document["services"])]
    if document["ledger"]:
        parts += ["", _ledger(document)]
    parts += ["", *(_command(service) for service in document["services"])]
    notes = [(None, note) for note in document["notes"]]
    notes += [(service["name"], note) for service in document["services"] for note in service["notes"]]
    return Group(*parts, *_notes(notes))


def _services(services: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("service", "runtime", "gpus", "memory each", "cpus", "numa", "bind", "port", "wave", "after")
    for service in services:
        gpus = service["gpus"]
        table.add_row(
            service["name"], service["runtime"], ",".join(str(gpu["index"]) for gpu in gpus) or "-",
            _budget(gpus), service["cpus"].replace(",", ", "),
            _numbers(service["numa_nodes"]), _numbers(service["memory_bind"]),
            str(service["port"]), str(service["wave"]), ",".join(service["after"]) or "-",
        )  # fmt: skip
    return table


def _budget(gpus: list[Mapping[str, Any]]) -> str:
    if not gpus:
        return "-"
    budget = gpus[0]["budget_mib"]
    return "unknown" if budget is None else format_bytes(budget * MIB)


def _numbers(values: list[int] | None) -> str:
    return ",".join(map(str, values)) if values else "-"


def _ledger(document: Mapping[str, Any]) -> Table:
    """Each GPU by its index and the beginning of its UUID, which the JSON has in full."""
    table = _table("gpu memory", "total", "held by", "for", "size", "free")
    indices = {gpu["uuid"]: gpu["index"] for service in document["services"] for gpu in service["gpus"]}
    for entry in document["ledger"]:
        begin = "-".join(entry["gpu"].split("-")[:2])
        name = f"{indices[entry['gpu']]} ({begin})" if entry["gpu"] in indices else begin
        cells = [name, format_bytes(entry["total_mib"] * MIB)]
        free = format_bytes(entry["free_mib"] * MIB)
        for item in entry["reserved"]:
            table.add_row(*cells, item["service"] or "others", item["for"], format_bytes(item["mib"] * MIB), free)
            cells, free = ["", ""], ""
    return table


def _command(service: Mapping[str, Any]) -> str:
    return f"{service['name']}: {shlex.join(service['argv'])}"


def _notes(notes: Iterable[tuple[str | None, str]]) -> list[str]:
    told = [f"note: {name}: {text}" if name else f"note: {text}" for name, text in notes]
    return ["", *told] if told else []


def build(document: Mapping[str, Any]) -> Group:
    """What was built or reused, the fused-attention proof and the guards."""
    parts: list[Any] = []
    for engine in document["engines"]:
        took = f" in {format_duration(engine['seconds'])}" if engine["seconds"] else ""
        parts.append(f"{'reused' if engine['reused'] else 'built'} {engine['path']}{took}  ({engine['name']})")
        fmha = engine["fmha"]
        parts.append(
            f"  fused attention: asked {fmha['asked']}, built {fmha['built']} ({fmha['phase']}); {fmha['proof']}"
        )
        parts += [f"  guard {guard['id']}: {guard['why']}" for guard in engine["guards"]]
        parts += [f"  note: {note}" for note in engine["notes"]]
    return Group(*parts)


def commands(document: Mapping[str, Any]) -> Group:
    """The exact commands of a dry run, environment first, as a shell takes them."""
    parts: list[Any] = []
    for engine in document["engines"]:
        parts.append(f"{engine['name']}  {engine['path']}")
        for command in engine["commands"]:
            variables = [f"{key}={shlex.quote(value)}" for key, value in command["env"].items()]
            parts.append("  " + " ".join([*variables, shlex.join(command["argv"])]))
        parts += [f"  guard {guard['id']}: {guard['why']}" for guard in engine["guards"]]
        parts += [f"  note: {note}" for note in engine["notes"]]
    return Group(*parts)


def engines(entries: Iterable[Mapping[str, Any]]) -> Table:
    """The engine store."""
    table = _table("engine", "fingerprint", "size", "built in", "path")
    for entry in entries:
        size, took = format_bytes(entry["size_bytes"]), format_duration(entry["build_seconds"])
        table.add_row(entry["name"], entry["fingerprint"][:12], size, took, entry["path"])
    return table


def pruned(document: Mapping[str, Any]) -> Group:
    """What a prune removed, left and freed."""
    verb = "would remove" if document["dry_run"] else "removed"
    parts = [f"{verb} {entry['path']}  ({entry['name']})" for entry in document["removed"]]
    parts += [f"in use, left: {entry['path']}  ({entry['name']})" for entry in document["in_use"]]
    parts += [f"{verb} leftover {path}" for path in document["leftovers"]]
    return Group(*parts, f"{'would free' if document['dry_run'] else 'freed'} {format_bytes(document['freed_bytes'])}")
