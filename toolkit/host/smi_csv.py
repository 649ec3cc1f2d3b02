"""``nvidia-smi --query-…=… --format=csv``: rows of values with their units and placeholders."""

from __future__ import annotations

import re
from typing import Any

from toolkit.host.smi_fields import NUMBER, QUANTITY, is_placeholder
from toolkit.host.smi_table import Table, table_of
from toolkit.host.smi_text import ambiguous, excerpt

_TEXT_FIELDS = re.compile(r"compute_cap|serial|gpu_serial|.*version.*|inforom.*|name|gpu_name|process_name|.*uuid.*")
_FLOAT_FIELDS = re.compile(r"power\.|enforced\.power|module\.power")
_COUNTS = ("index", "count", "pid")
_QUERY = re.compile(r"--query-[a-z-]+[= ]([A-Za-z0-9_.,]+)")


def parse(lines: list[str], commands: list[str]) -> dict[str, Any]:
    """``header``, ``query``, ``units``, ``rows[]`` and ``nulls[]``; unknown values are None.

    Raises: ToolkitError when the rows don't have one number of columns, or it can be cut in two ways.
    """
    table = table_of(lines)
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
            if is_placeholder(text)
        ],
    }


def _positions(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    return [str(at) for at in range(len(rows[0]))]


def _refuse_no_counts(table: Table, columns: list[str]) -> None:
    for row in table.rows:
        for name, text in zip(columns, row, strict=True):
            if name in _COUNTS and not (text.isdecimal() or is_placeholder(text)):
                raise ambiguous("csv", f"'{excerpt(text)}' is no {name}")


def _units(table: Table, columns: list[str]) -> dict[str, str]:
    """Unit of each column that prints one, in its heading or beside its values."""
    units: dict[str, str] = {name: unit for name, unit in table.headings or () if unit}
    for at, name in enumerate(columns):
        texts = [row[at] for row in table.rows if not is_placeholder(row[at])]
        printed = {match[2] if (match := QUANTITY.fullmatch(text)) else "no unit" for text in texts}
        if not printed - {"no unit"}:
            continue
        if len(said := printed | {units.get(name, next(iter(printed)))}) > 1:
            raise ambiguous("csv", f"column {name} has values in {' and in '.join(sorted(said))}")
        units[name] = printed.pop()
    return {name: units[name] for name in columns if name in units}


def _value(text: str, column: str, unit: str | None) -> int | float | str | None:
    if is_placeholder(text):
        return None
    quantity = QUANTITY.fullmatch(text)
    number = quantity[1] if quantity else text
    if not NUMBER.fullmatch(number) or (not quantity and _TEXT_FIELDS.fullmatch(column)):
        return text
    if unit == "W" or _FLOAT_FIELDS.match(column):
        return float(number)
    if "." not in number:
        return int(number)
    return float(number) if unit else text  # '8.6' alone may be a version


def _query(commands: list[str]) -> list[str] | None:
    typed = next((match for line in commands if (match := _QUERY.search(line))), None)
    return typed[1].split(",") if typed else None
