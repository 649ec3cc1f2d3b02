"""A table of nvidia-smi as headings and rows of text, also where a terminal cut its lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from toolkit.host.smi_fields import HEADING, QUANTITY, has_heading, is_formed, is_known_heading, is_value_row
from toolkit.host.smi_text import ambiguous, excerpt

_SEPARATORS = (r",\s+", ",")


@dataclass(frozen=True)
class Table:
    """``headings``: name and unit of each column; None: the first line is a row already."""

    headings: tuple[tuple[str, str | None], ...] | None
    rows: tuple[tuple[str, ...], ...]


def looks_like(lines: list[str]) -> bool:
    """Whether the lines are columns that nvidia-smi prints: a known heading, or values in its spelling."""
    return any(
        any(_headings(_split(whole[0], separator)) for separator in _SEPARATORS) or all(map(_is_value_row, whole))
        for whole in _layouts(lines)
    )


def has_headings(lines: list[str]) -> bool:
    """Whether a line is the heading of several columns."""
    return any("," in line and _headings(_split(line.strip(), ",")) for line in lines)


def table_of(lines: list[str]) -> Table:
    """The table in these lines.

    Raises: ToolkitError when the rows don't have one number of columns, or it can be cut in two ways.
    """
    plain, *glued = _layouts(lines)
    for layouts in ([plain], glued):
        tables = {table for by in _SEPARATORS for table in _best(_table(layout, by) for layout in layouts)}
        if len(tables) > 1:
            raise ambiguous("csv", "its rows can be cut into columns in two ways")
        if tables:
            return tables.pop()
    raise ambiguous("csv", _ragged(plain))


def _best(tables: Iterable[Table | None]) -> list[Table]:
    """Of the tables those with most fields that are whole by their form."""
    found = [(sum(map(is_formed, _fields(table))), table) for table in tables if table]
    most = max((formed for formed, _ in found), default=0)
    return [table for formed, table in found if formed == most]


def _fields(table: Table) -> Iterable[str]:
    units = (f"[{unit}]" for _, unit in table.headings or () if unit)
    return chain(units, *table.rows)


def _layouts(lines: list[str]) -> list[list[str]]:
    """The lines as they stand, and put together again where a terminal cut them at its width.

    Lines that have one number of columns, none of them empty, were not cut.
    """
    filled = [line for line in lines if line.strip()]
    fields = [_split(line, ",") for line in filled]
    if len({len(row) for row in fields}) == 1 and len(fields[0]) > 1 and all(map(all, fields)):
        return [[line.strip() for line in filled]]
    width = max(map(len, filled), default=0)
    # One line alone doesn't prove the terminal's width: it may have ended in a blank.
    gaps = ("", " ") if sum(len(line) == width for line in filled) == 1 else ("",)
    return [[line.strip() for line in filled], *(_glued(filled, width, gap) for gap in gaps)] if filled else []


def _glued(filled: list[str], width: int, gap: str) -> list[str]:
    whole = [""]
    for line in filled:
        if _is_complete(whole[-1]) and not line.strip().startswith(","):
            whole.append("")
        whole[-1] += f"{gap}{line}" if whole[-1] else line
        if len(line) < width:
            whole.append("")
    return [line.strip() for line in whole if line]


def _is_complete(line: str) -> bool:
    """Whether the last value of a line can't go on in the next one."""
    last = _split(line, ",")[-1]
    return bool(QUANTITY.fullmatch(last)) or last.endswith("]")


def _split(line: str, separator: str) -> tuple[str, ...]:
    return tuple(field.strip() for field in re.split(separator, line))


def _table(lines: list[str], separator: str) -> Table | None:
    """The text cut at a separator; None when a row has an empty column, or not as many as the first line."""
    rows = tuple(_split(line, separator) for line in lines)
    if any(len(row) != len(rows[0]) or not all(row) for row in rows) or any(map(has_heading, rows[1:])):
        return None
    headings = _headings(rows[0])
    if headings is None and not all(map(_is_value_row, lines)):
        return None
    return Table(headings, rows[1:] if headings else rows)


def _headings(fields: tuple[str, ...]) -> tuple[tuple[str, str | None], ...] | None:
    matches = [HEADING.fullmatch(field) for field in fields]
    if not all(matches) or not any(map(is_known_heading, fields)):
        return None
    return tuple((match["name"], match["unit"]) for match in matches if match)


def _is_value_row(line: str) -> bool:
    spaced = ", " in line
    return is_value_row(_split(line, _SEPARATORS[0] if spaced else ","), spaced)


def _ragged(lines: list[str]) -> str:
    width = len(_split(lines[0], ","))
    odd = next((line for line in lines if len(_split(line, ",")) != width), lines[0])
    return f"'{excerpt(odd)}' has another number of columns than the first line ({width})"
