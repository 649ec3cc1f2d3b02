"""``nvidia-smi --query-…=… --format=csv``: rows of values with their units and placeholders."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from toolkit.host.smi_text import ambiguous, excerpt

# First parts of the field names of --query-gpu, --query-compute-apps and their kin (nvidia-smi --help-query-gpu).
_KNOWN_FIELDS = (
    "accounting addressing_mode c2c clocks clocks_event_reasons clocks_throttle_reasons compute_cap compute_mode count "
    "display_active display_attached display_mode driver_model driver_version ecc encoder enforced fabric fan gom "
    "gpu_bus_id gpu_name gpu_serial gpu_uuid gpu_utilization gsp index inforom max_memory_usage mem_utilization memory "
    "mig mode name pci pcie persistence_mode pid power process_name protected_memory pstate remapped_rows "
    "retired_pages serial temperature time timestamp used_gpu_memory used_memory utilization uuid vbios_version vgpu "
    "vgpu_device_capability vgpu_driver_capability module gpu_recovery_action platform hostname dramEncryption "
    "gpu_operation_mode stats"
)
_FIELDS = frozenset(_KNOWN_FIELDS.split())
_HEADING = re.compile(r"(?P<name>[a-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?:\s*\[(?P<unit>[^\]]+)\])?")
_QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?)\s*(MiB|KiB|GiB|MB|KB|MHz|GHz|%|W|mW|°C|C|KB/s|MB/s|Mbps|Gbps|mJ|J|us|ms|s)")
_PLACEHOLDERS = ("N/A", "ERR!", "Not Supported", "Unknown Error", "Insufficient Permissions")
_TEXT_FIELDS = re.compile(r"compute_cap|serial|gpu_serial|.*version.*|inforom.*|name|gpu_name|process_name|.*uuid.*")
_FLOAT_FIELDS = re.compile(r"power\.|enforced\.power|module\.power")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F]{8}-")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")
_PRODUCT = re.compile(r"NVIDIA|GeForce|Tesla|Quadro|\bRTX\b|\bGTX\b")
_COUNTS = ("index", "count", "pid")
_SENTENCE = re.compile(r"[:=]\s|=|[:=]$")
_SEPARATORS = (r",\s+", ",")
_QUERY = re.compile(r"--query-[a-z-]+[= ]([A-Za-z0-9_.,]+)")


@dataclass(frozen=True)
class _Table:
    headings: tuple[tuple[str, str | None], ...] | None
    rows: tuple[tuple[str, ...], ...]


def looks_like(lines: list[str]) -> bool:
    """Whether the lines are columns that nvidia-smi prints: a known heading, or values in its spelling."""
    return any(
        any(_headings(_split(whole[0], separator)) for separator in _SEPARATORS)
        or all(_is_value_row(line) for line in whole)
        for whole in _layouts(lines)
    )


def has_heading(lines: list[str]) -> bool:
    """Whether a line is the heading of several columns."""
    return any("," in line and _headings(_split(line.strip(), ",")) for line in lines)


def parse(lines: list[str], commands: list[str]) -> dict[str, Any]:
    """``header``, ``query``, ``units``, ``rows[]`` and ``nulls[]``; unknown values are None.

    Raises: ToolkitError when the rows don't have one number of columns, or it can be cut in two ways.
    """
    table = _table_of(lines)
    columns = [name for name, _ in table.headings] if table.headings else _positions(table.rows)
    if len(set(columns)) != len(columns):
        raise ambiguous("csv", "a column is named twice")
    _refuse_no_counts(table, columns)
    units = _units(table, columns)
    return {
        "kind": "csv",
        "header": table.headings is not None,
        "query": _query(commands),
        "units": units,
        "rows": [
            {name: _value(text, name, units.get(name)) for name, text in zip(columns, row, strict=True)}
            for row in table.rows
        ],
        "nulls": [
            {"row": at, "column": name, "text": text}
            for at, row in enumerate(table.rows)
            for name, text in zip(columns, row, strict=True)
            if _is_placeholder(text)
        ],
    }


def _layouts(lines: list[str]) -> list[list[str]]:
    """The lines as they stand, and put together again where a terminal cut them at its width."""
    filled = [line for line in lines if line.strip()]
    width = max(map(len, filled), default=0)
    whole = [""]
    for line in filled:
        if _is_complete(whole[-1]) and not line.strip().startswith(","):
            whole.append("")
        whole[-1] += line
        if len(line) < width:
            whole.append("")
    layouts = [[line.strip() for line in layout if line] for layout in (filled, whole)]
    return layouts if filled else []


def _is_complete(line: str) -> bool:
    """Whether the last value of a line can't go on in the next one."""
    last = _split(line, ",")[-1]
    return bool(_QUANTITY.fullmatch(last)) or last.endswith("]")


def _split(line: str, separator: str) -> tuple[str, ...]:
    return tuple(field.strip() for field in re.split(separator, line))


def _positions(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    return [str(at) for at in range(len(rows[0]))]


def _table_of(lines: list[str]) -> _Table:
    for layout in _layouts(lines):
        tables = {table for separator in _SEPARATORS if (table := _table(layout, separator))}
        if len(tables) > 1:
            raise ambiguous("csv", "its rows can be cut into columns in two ways")
        if tables:
            return tables.pop()
    raise ambiguous("csv", _ragged(_layouts(lines)[0]))


def _table(lines: list[str], separator: str) -> _Table | None:
    """The text cut at a separator; None when a row has another number of columns than the first line."""
    rows = tuple(_split(line, separator) for line in lines)
    if any(len(row) != len(rows[0]) for row in rows):
        return None
    headings = _headings(rows[0])
    if headings is None and not all(_is_value_row(line) for line in lines):
        return None
    return _Table(headings, rows[1:] if headings else rows)


def _headings(fields: tuple[str, ...]) -> tuple[tuple[str, str | None], ...] | None:
    matches = [_HEADING.fullmatch(field) for field in fields]
    if not all(matches) or not any(match and match["name"].split(".")[0] in _FIELDS for match in matches):
        return None
    return tuple((match["name"], match["unit"]) for match in matches if match)


def _is_value_row(line: str) -> bool:
    """A row without a heading: something in it is spelled as only nvidia-smi does, or all of it is numbers."""
    fields = _split(line, r",\s+" if ", " in line else ",")
    if any(_SENTENCE.search(f) for f in fields):
        return False
    if any(_QUANTITY.fullmatch(f) or _UUID.match(f) or _BUS_ID.fullmatch(f) for f in fields):
        return True
    if len(fields) < 2:
        return False
    return any(_is_placeholder(f) or _PRODUCT.search(f) for f in fields) or (
        ", " in line and all(re.fullmatch(r"-?\d+(\.\d+)?", f) for f in fields)
    )


def _ragged(lines: list[str]) -> str:
    width = len(_split(lines[0], ","))
    odd = next((line for line in lines if len(_split(line, ",")) != width), lines[0])
    return f"'{excerpt(odd)}' has another number of columns than the first line ({width})"


def _is_placeholder(text: str) -> bool:
    return text in _PLACEHOLDERS or re.fullmatch(r"\[[A-Za-z][^\[\]]*\]", text) is not None


def _refuse_no_counts(table: _Table, columns: list[str]) -> None:
    for row in table.rows:
        for name, text in zip(columns, row, strict=True):
            if name in _COUNTS and not (text.isdecimal() or _is_placeholder(text)):
                raise ambiguous("csv", f"'{excerpt(text)}' is no {name}")


def _units(table: _Table, columns: list[str]) -> dict[str, str]:
    """Unit of each column that prints one, in its heading or beside its values."""
    units: dict[str, str] = {name: unit for name, unit in table.headings or () if unit}
    for row in table.rows:
        for name, text in zip(columns, row, strict=True):
            match = _QUANTITY.fullmatch(text)
            if match and units.setdefault(name, match[2]) != match[2]:
                raise ambiguous("csv", f"column {name} has values in {units[name]} and in {match[2]}")
    return {name: units[name] for name in columns if name in units}


def _value(text: str, column: str, unit: str | None) -> int | float | str | None:
    if _is_placeholder(text):
        return None
    quantity = _QUANTITY.fullmatch(text)
    number = quantity[1] if quantity else text
    if not re.fullmatch(r"-?\d+(\.\d+)?", number) or (not quantity and _TEXT_FIELDS.fullmatch(column)):
        return text
    if unit == "W" or _FLOAT_FIELDS.match(column):
        return float(number)
    if "." not in number:
        return int(number)
    return float(number) if unit else text  # '8.6' alone may be a version


def _query(commands: list[str]) -> list[str] | None:
    typed = next((match for line in commands if (match := _QUERY.search(line))), None)
    return typed[1].split(",") if typed else None
