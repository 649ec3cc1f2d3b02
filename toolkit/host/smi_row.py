"""All readings of one row of a topology matrix: device cells, then affinity columns, some of them blank."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SOC", "SYS")  # nearest first; SOC is what old drivers print for SYS
CELL = r"(?:X|NV[1-9]\d?|PIX|PXB|PHB|NODE|SYS|SOC)"
MAX_NUMA_NODE = 1023  # Linux: MAX_NUMNODES is at most 1024
MAX_CPU = 65535
_CELLS = re.compile(f"{CELL}+")
_NUMBER = r"(?:0|[1-9]\d{0,4})"
_RANGE = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?")
_UNKNOWN = ("N/A", "-1")
_MAX_WORD = 300  # a longer word is not split: ways to do so grow with the cube of its length


@dataclass(frozen=True)
class ColumnHead:
    """A column: device name, or ``cpus``, ``numa``, ``id``; ``start`` in characters."""

    name: str
    start: int


@dataclass(frozen=True)
class Columns:
    """Device columns, then affinity columns (none for a NIC's row)."""

    devices: tuple[ColumnHead, ...]
    tail: tuple[ColumnHead, ...]


@dataclass(frozen=True)
class RowText:
    """A row's ``body``, which follows its label; the label begins at column ``base`` and ends at ``indent``."""

    base: int
    indent: int
    body: str


@dataclass(frozen=True)
class Reading:
    """What a row says; ``tail`` has one entry per affinity column, None for N/A and blank."""

    cells: tuple[str, ...]
    tail: tuple[str | None, ...]


@dataclass(frozen=True)
class _Token:
    """``start`` in characters after tabs are expanded; ``tabs``: how many precede it in the row."""

    text: str
    start: int
    tabs: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def has_cells(line: str) -> bool:
    """Whether any word of the line is a link cell."""
    return any(_CELLS.fullmatch(word) for word in line.split())


def readings(row: RowText, columns: Columns) -> set[Reading]:
    """Possible readings of a row that stands on one line."""
    tokens = _tokens(row)
    plain = _plain(tokens, columns)
    if plain and len(plain.tail) == len(columns.tail):
        return {Reading(plain.cells, _nulls(plain.tail))}
    if max((len(token.text) for token in tokens), default=0) > _MAX_WORD:
        return set()
    filled = _fills(tokens, columns)
    if plain is None:
        return filled
    options, proven = _with_blanks(plain, row, columns)
    return options if proven else options | filled


def wrapped_readings(bodies: list[str], columns: Columns) -> set[Reading]:
    """Possible readings of a row that was cut into lines; ``bodies``: the ways to put it together."""
    # A wrapped line has no columns any more, so one blank between its words says as much.
    rows = [RowText(0, 0, " " + " ".join(body.split())) for body in bodies]
    return set().union(*(readings(row, columns) for row in rows))


def _tokens(row: RowText) -> list[_Token]:
    line = " " * row.indent + row.body
    words = re.finditer(r"\S+", line)
    starts = (match.start() for match in re.finditer(r"\S+", line.expandtabs(8)))
    tokens: list[_Token] = []
    for word, start in zip(words, starts, strict=True):
        tabs = line.count("\t", 0, word.start())
        if tokens and (tokens[-1].text.endswith(",") or word[0].startswith(",")):
            tokens[-1] = _Token(tokens[-1].text + word[0], tokens[-1].start, tokens[-1].tabs)
        else:
            tokens.append(_Token(word[0], start, tabs))
    return tokens


@dataclass(frozen=True)
class _Plain:
    """A reading without splits: every affinity word is one value, their columns still open."""

    cells: tuple[str, ...]
    tail: tuple[str, ...]
    matrix_tokens: tuple[_Token, ...]
    tail_tokens: tuple[_Token, ...]


def _plain(tokens: list[_Token], columns: Columns) -> _Plain | None:
    matrix = tuple(itertools.takewhile(lambda token: _CELLS.fullmatch(token.text), tokens))
    rest = tuple(tokens[len(matrix) :])
    cells = tuple(cell for token in matrix for cell in re.findall(CELL, token.text))
    plain = _Plain(cells, tuple(token.text for token in rest), matrix, rest)
    fits = len(cells) == len(columns.devices) and next(_assignments(plain, columns), None) is not None
    return plain if fits else None


def _assignments(plain: _Plain, columns: Columns) -> Iterator[tuple[int, ...]]:
    """Ways to put the values into affinity columns, in order."""
    for places in itertools.combinations(range(len(columns.tail)), len(plain.tail)):
        if all(_fits(value, columns.tail[at].name) for at, value in zip(places, plain.tail, strict=True)):
            yield places


def _fits(text: str, column: str) -> bool:
    if text in _UNKNOWN:
        return column != "cpus" or text == "N/A"
    parts = text.split(",")
    if column == "id" and (len(parts) > 1 or "-" in text):
        return False
    limit = MAX_CPU if column == "cpus" else MAX_NUMA_NODE
    return all(_range_fits(part, limit) for part in parts)


def _range_fits(part: str, limit: int) -> bool:
    match = _RANGE.fullmatch(part)
    if match is None:
        return False
    first, last = int(match[1]), int(match[2] or match[1])
    return first <= last <= limit and (match[2] is None or first < last)


def _nulls(values: tuple[str | None, ...]) -> tuple[str | None, ...]:
    return tuple(None if value in _UNKNOWN else value for value in values)


def _fills(tokens: list[_Token], columns: Columns) -> set[Reading]:
    """Readings in which glued words are split so that every column of the header is filled."""
    names = [head.name for head in columns.tail]
    return {
        Reading(cells, _nulls(values))
        for cells, rest in _matrix_splits([token.text for token in tokens], len(columns.devices))
        for values in _tail_splits(rest, names)
    }


def _matrix_splits(words: list[str], width: int) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Ways to take exactly ``width`` link cells off the front; the last of them may be glued to a value."""
    cells: list[str] = []
    for at, word in enumerate(words):
        for cut in range(1, len(word)):
            prefix = word[:cut]
            if _CELLS.fullmatch(prefix) and (word[cut].isdigit() or word[cut:].startswith("N/A")):
                taken = cells + re.findall(CELL, prefix)
                if len(taken) == width:
                    yield tuple(taken), [word[cut:], *words[at + 1 :]]
        if not _CELLS.fullmatch(word):
            return
        cells += re.findall(CELL, word)
        if len(cells) == width:
            yield tuple(cells), words[at + 1 :]


def _tail_splits(words: list[str], columns: list[str]) -> Iterator[tuple[str, ...]]:
    if not columns or not words:
        if not columns and not words:
            yield ()
        return
    first, *others = words
    whole = len(first)
    for cut in range(whole if len(columns) == 1 else 1, whole + 1):
        if _fits(first[:cut], columns[0]):
            rest = [first[cut:], *others] if cut < whole else others
            for values in _tail_splits(rest, columns[1:]):
                yield (first[:cut], *values)


def _with_blanks(plain: _Plain, row: RowText, columns: Columns) -> tuple[set[Reading], bool]:
    """Readings with blank columns, and whether the layout proves that these are blank."""
    options = list(_assignments(plain, columns))
    seen = _columns_seen(plain, row, columns)
    if seen not in options:
        return {_reading(plain, places, columns) for places in options}, False
    return {_reading(plain, seen, columns)}, _blanks_are_seen(seen, row, len(columns.tail))


def _reading(plain: _Plain, places: tuple[int, ...], columns: Columns) -> Reading:
    values: list[str | None] = [None] * len(columns.tail)
    for at, value in zip(places, plain.tail, strict=True):
        values[at] = value
    return Reading(plain.cells, _nulls(tuple(values)))


def _columns_seen(plain: _Plain, row: RowText, columns: Columns) -> tuple[int, ...]:
    """The columns in which the values stand by the layout; empty when it doesn't say or says two things."""
    by_stop = _columns_by_stop(plain, row, len(columns.tail))
    by_head = () if "\t" in row.body else _columns_by_head(plain, columns)
    if by_stop and by_head and by_stop != by_head:
        return ()
    return by_stop or by_head


def _blanks_are_seen(places: tuple[int, ...], row: RowText, width: int) -> bool:
    """False when the last columns are missing without a trace: their values may be glued to the one before."""
    missing = width - 1 - max(places, default=-1)
    return missing == 0 or row.body[len(row.body.rstrip()) :].count("\t") >= missing


def _columns_by_head(plain: _Plain, columns: Columns) -> tuple[int, ...]:
    """Columns by the heading above each value; empty when cells don't stand under their headings."""
    starts = [head.start for head in columns.tail]
    if len(plain.matrix_tokens) != len(columns.devices):
        return ()
    for token, head in zip(plain.matrix_tokens, columns.devices, strict=True):
        slack = 2 if token.text == "X" else 0  # an X may be centred
        if not head.start <= token.start <= head.start + slack:
            return ()
    if not all(token.start in starts for token in plain.tail_tokens):
        return ()
    return tuple(starts.index(token.start) for token in plain.tail_tokens)


def _columns_by_stop(plain: _Plain, row: RowText, width: int) -> tuple[int, ...]:
    """Columns by tab stops, as drivers print them: ``CPUS, tab, NUMA, tab, tab, ID``; empty when left open."""
    stops = _stops(plain, row)
    if not stops:
        return ()
    if len(stops) == 1:
        places = [_later_column(stops[0], width) if stops[0] else 0]
    else:
        places = [1, 2] if stops[0] else [0, _later_column(stops[1], width)]
    return tuple(places) if min(places) >= 0 else ()


def _later_column(stop: int, width: int) -> int:
    """The column of a value that stands ``stop`` tab stops after the CPU column's; -1: it may be two of them."""
    if width < 3:
        return width - 1
    return {1: 1, 2: -1}.get(stop, 2)


def _stops(plain: _Plain, row: RowText) -> list[int]:
    """At which tab stop each value stands, counted from the one after the last device cell; a value takes one."""
    last = plain.matrix_tokens[-1]
    if "\t" in row.body:
        return [token.tabs - last.tabs - 1 for token in plain.tail_tokens]
    tokens = (*plain.matrix_tokens, *plain.tail_tokens)
    if any((token.start - row.base - (token.text == "X")) % 8 for token in tokens):
        return []
    stops, at, end = [], 0, last.end
    for token in plain.tail_tokens:
        at += (token.start - row.base) // 8 - ((end - row.base) // 8 + 1)
        stops.append(at)
        at, end = at + 1, token.end
    return stops
