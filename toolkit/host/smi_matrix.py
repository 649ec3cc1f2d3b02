"""``nvidia-smi topo -m``: who is linked to whom, as facts; two possible readings are a refusal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from toolkit.host import smi_row
from toolkit.host.smi_row import LEVELS, ColumnHead, Columns, Reading, RowText
from toolkit.host.smi_text import ambiguous, excerpt, with_cuts
from toolkit.units import parse_cpu_list

AFFINITY_HEADS = {"cpus": r"CPU\s*Affinity", "numa": r"NUMA\s*Affinity", "id": r"GPU\s*NUMA\s*ID"}
_NAME = r"GPU\d+|NIC\d+|mlx\d+_(?:bond_?)?\d+(?=\s|$|mlx|[A-Z])|[a-z][A-Za-z0-9_.:-]*\d[A-Za-z0-9_.:-]*"
_HEAD = re.compile("|".join(f"(?P<{key}>{text})" for key, text in AFFINITY_HEADS.items()) + f"|(?P<name>{_NAME})")
_HEADER_START = re.compile(r"\s*GPU\d+\s*(?:GPU|NIC|C|N|G|[a-z][\w.:-]*\d|$)")
_ROW = re.compile(
    rf"\s*(?P<label>{_NAME})(?P<body>\s*(?:X|NV\d|PIX|PXB|PHB|NODE|SYS|SOC).*|\s+(?:N|NO|NOD|P|PH|PI|PX|S|SO|SY)\s*$)"
)
_GLUED_ROW = re.compile(rf"\s*(?P<label>(?:GPU|NIC)\d+|mlx\d+_(?:bond_?)?\d+)(?P<body>{smi_row.CELL}.*)")
_PEER_ROW = re.compile(r"\s*GPU\d+\s+(X\s+)?(OK|CNS|GNS|TNS|DR|NS)\b")
_LEGEND = re.compile(r"\s*(Legend\s*:|NIC\s+Legend\s*:|(X|SYS|SOC|NODE|PHB|PXB|PIX|NV#)\s*=)")
_NIC_LEGEND = re.compile(r"\s*(NIC\d+)\s*[:=]\s*(\S+)\s*")
_CONTINUATION = re.compile(r"[A-Z0-9/,\s-]*")


@dataclass
class _RowLines:
    """A row as it stands in the text: the line with its label, then what was wrapped."""

    label: str
    base: int
    indent: int
    bodies: list[str]


@dataclass
class _Sections:
    """Lines of the text by what they are; a header or a row is one line, or several when it was wrapped."""

    header: list[str] = field(default_factory=list)
    rows: list[_RowLines] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Header:
    devices: tuple[ColumnHead, ...]
    tail: tuple[ColumnHead, ...]

    @property
    def device_names(self) -> list[str]:
        return [head.name for head in self.devices]

    @property
    def gpus(self) -> list[int]:
        return [int(name[3:]) for name in self.device_names if name.startswith("GPU")]

    @property
    def nics(self) -> list[str]:
        return [name for name in self.device_names if not name.startswith("GPU")]


def looks_like(lines: list[str]) -> bool:
    """Whether a line is a matrix header: device names, perhaps affinity columns; not the matrix of ``topo -p2p``."""
    return not any(_PEER_ROW.match(line) for line in lines) and any(_is_header_start(line) for line in lines)


def parse(lines: list[str]) -> dict[str, Any]:
    """Facts of a matrix: ``gpus``, ``links``, ``nics``, ``nearest_nics``, ``nearest_level``, ``missing_rows``.

    Raises: ToolkitError when two readings are possible.
    """
    sections = _split(lines)
    header = _header(sections.header)
    rows = _rows(sections.rows, header)
    cells = _cells(rows, header)
    nearest = {str(gpu): _nearest(gpu, header, cells) for gpu in header.gpus}
    return {
        "kind": "topo",
        "verdict": "ok",
        "reason": None,
        "gpus": [_gpu(gpu, rows.get(f"GPU{gpu}"), header) for gpu in header.gpus],
        "links": _links(header, cells),
        "nics": _nic_names(sections.legend, header),
        "nearest_nics": {gpu: found[0] for gpu, found in nearest.items()},
        "nearest_level": {gpu: found[1] for gpu, found in nearest.items()},
        "missing_rows": [f"GPU{gpu}" for gpu in header.gpus if f"GPU{gpu}" not in rows],
    }


def _is_header_start(line: str) -> bool:
    return bool(_HEADER_START.match(line)) and not _row_match(line)


def _row_match(line: str) -> re.Match[str] | None:
    return _GLUED_ROW.match(line) or _ROW.match(line)


def _split(lines: list[str]) -> _Sections:
    found = _Sections()
    start = next(index for index, line in enumerate(lines) if _is_header_start(line))
    early = next((line for line in lines[:start] if _row_match(line)), None)
    if early is not None:
        raise ambiguous("topo", f"a row comes before the header ('{excerpt(early)}')")
    end = next((at for at, line in enumerate(lines) if at > start and _LEGEND.match(line)), len(lines))
    for line in with_cuts(lines[start:end]):
        _place(line, found)
    found.legend = lines[end:]
    _refuse_second_matrix(found.legend)
    return found


def _place(line: str, found: _Sections) -> None:
    row = _row_match(line)
    if row:
        found.rows.append(_row_lines(line, row))
    elif not found.rows:
        found.header.append(line)
    elif _CONTINUATION.fullmatch(line):
        found.rows[-1].bodies.append(line)
    elif _is_header_start(line):
        raise ambiguous("topo", "it holds two matrices, or a row without cells")
    elif smi_row.has_cells(line):
        raise ambiguous("topo", f"the line '{excerpt(line)}' is neither a row nor the rest of one")


def _row_lines(line: str, row: re.Match[str]) -> _RowLines:
    label_end = row.end("label")
    indent = len(line[:label_end].expandtabs(8))
    return _RowLines(row["label"], indent - len(row["label"]), indent, [line[label_end:]])


def _refuse_second_matrix(legend: list[str]) -> None:
    if any(_is_header_start(line) or _row_match(line) for line in legend):
        raise ambiguous("topo", "a second matrix or row follows the legend")


def _header(lines: list[str]) -> _Header:
    scans = {tuple(head.name for head in scan): scan for joined in _joins(lines) if (scan := _scan(joined))}
    if len(scans) != 1:
        raise ambiguous("topo", f"the header '{excerpt(lines[0])}' doesn't name its columns")
    ((names, heads),) = scans.items()
    if len(set(names)) != len(names):
        raise ambiguous("topo", "the header names a column twice")
    header = _Header(
        tuple(head for head in heads if head.name not in AFFINITY_HEADS),
        tuple(head for head in heads if head.name in AFFINITY_HEADS),
    )
    if [*header.device_names, *filter(names.__contains__, AFFINITY_HEADS)] != list(names):
        raise ambiguous("topo", "the columns of the header are in an order that nvidia-smi doesn't print")
    return header


def _joins(lines: list[str]) -> list[str]:
    """A wrapped line put together: cut anywhere, or cut at a blank."""
    return lines if len(lines) == 1 else ["".join(lines), " ".join(lines)]


def _scan(line: str) -> list[ColumnHead] | None:
    """Columns of a header line with their start; None when something else is in it."""
    expanded, heads, at = line.expandtabs(8), [], 0
    while at < len(expanded.rstrip()):
        if expanded[at] == " ":
            at += 1
            continue
        match = _HEAD.match(expanded, at)
        if match is None:
            return None
        heads.append(ColumnHead(match[0] if match.lastgroup == "name" else str(match.lastgroup), at))
        at = match.end()
    return heads


def _rows(found: list[_RowLines], header: _Header) -> dict[str, Reading]:
    rows: dict[str, Reading] = {}
    for lines in found:
        if lines.label not in header.device_names:
            raise ambiguous("topo", f"there is a row {lines.label}, but the header has no such column")
        reading = _row(lines, header)
        if rows.setdefault(lines.label, reading) != reading:
            raise ambiguous("topo", f"there are two different rows {lines.label}")
    return rows


def _row(lines: _RowLines, header: _Header) -> Reading:
    columns = Columns(header.devices, header.tail if lines.label.startswith("GPU") else ())
    if len(lines.bodies) == 1:
        found = smi_row.readings(RowText(lines.base, lines.indent, lines.bodies[0]), columns)
    else:
        found = smi_row.wrapped_readings(_joins(lines.bodies), columns)
    if len(found) != 1:
        raise ambiguous("topo", _why(lines, header, found))
    (reading,) = found
    if [at for at, cell in enumerate(reading.cells) if cell == "X"] != [header.device_names.index(lines.label)]:
        raise ambiguous("topo", f"row {lines.label} has its X in another column than its own")
    return reading


def _why(lines: _RowLines, header: _Header, found: set[Reading]) -> str:
    row = f"row {lines.label} ('{excerpt(''.join(lines.bodies))}')"
    if found:
        return f"{row} has {len(found)} possible readings"
    return f"{row} doesn't fill the {len(header.devices)} device columns of the header"


def _cells(rows: dict[str, Reading], header: _Header) -> dict[tuple[str, str], str]:
    """Cells by row and column; a pair that says two things is refused."""
    names = header.device_names
    cells = {(label, name): cell for label, row in rows.items() for name, cell in zip(names, row.cells, strict=True)}
    for (a, b), cell in cells.items():
        if cells.get((b, a), cell) != cell:
            raise ambiguous("topo", f"row {a} says {cell} for {b}, and row {b} says {cells[b, a]} for {a}")
    return cells


def _links(header: _Header, cells: dict[tuple[str, str], str]) -> dict[str, str | None]:
    pairs = itertools.combinations(sorted(header.gpus), 2)
    return {f"{a}-{b}": _either(cells, f"GPU{a}", f"GPU{b}") for a, b in pairs}


def _either(cells: dict[tuple[str, str], str], a: str, b: str) -> str | None:
    return cells.get((a, b), cells.get((b, a)))


def _nearest(gpu: int, header: _Header, cells: dict[tuple[str, str], str]) -> tuple[list[str] | None, str | None]:
    levels = {nic: _either(cells, f"GPU{gpu}", nic) for nic in header.nics}
    known = {nic: level for nic, level in levels.items() if level is not None}
    if len(known) < len(levels):
        return None, None
    closest = min(known.values(), key=_rank, default=None)
    return [nic for nic, level in known.items() if level == closest], closest


def _rank(level: str) -> int:
    return LEVELS.index(level) if level in LEVELS else -1


def _gpu(index: int, row: Reading | None, header: _Header) -> dict[str, Any]:
    tail = dict(zip((head.name for head in header.tail), row.tail, strict=True)) if row else {}
    numa, own = tail.get("numa"), tail.get("id")
    return {
        "index": index,
        "cpus": tail.get("cpus"),
        "numa": None if numa is None else list(parse_cpu_list(numa)),
        "gpu_numa_id": None if own is None else int(own),
    }


def _nic_names(legend: list[str], header: _Header) -> dict[str, str | None]:
    names: dict[str, str | None] = {nic: None if nic.startswith("NIC") else nic for nic in header.nics}
    for heading, device in _legend_entries(legend):
        if heading not in names or names[heading] not in (None, device):
            raise ambiguous("topo", f"the NIC legend says {heading}: {device}, which the columns don't bear out")
        names[heading] = device
    return names


def _legend_entries(legend: list[str]) -> Iterator[tuple[str, str]]:
    for line in legend:
        match = _NIC_LEGEND.fullmatch(line)
        if match:
            yield match[1], match[2]
