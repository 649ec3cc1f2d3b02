"""Made-up lists and tables of nvidia-smi, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

HEX = "0123456789abcdef"
NAMES = [
    "NVIDIA H100 80GB HBM3",
    "Orin (nvgpu)",
    "GRID A100-2-10C",
    "Tesla T4",
    "NVIDIA GeForce GTX 1650 Ti with Max-Q Design",
]
PROFILES = ["1g.10gb", "1c.3g.40gb", "1g.24gb+me", "2g.20gb", "1g.5gb-me", "7g.80gb"]
PLACEHOLDERS = ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "N/A", "ERR!"]


def ids(prefix: str = "GPU-") -> st.SearchStrategy[str]:
    parts = [st.text(HEX, min_size=n, max_size=n) for n in (8, 4, 4, 4, 12)]
    return st.tuples(*parts).map(lambda found: prefix + "-".join(found))


@st.composite
def lists(draw) -> dict[str, Any]:
    """The facts of a list of up to four GPUs."""
    uuids = draw(st.lists(ids(), min_size=1, max_size=4, unique=True))
    new = iter(draw(st.lists(ids("MIG-"), min_size=28, max_size=28, unique=True)))
    gpus = []
    for index, uuid in enumerate(uuids):
        old = draw(st.booleans())
        mig = [
            {
                "profile": draw(st.sampled_from(PROFILES)),
                "index": at,
                "uuid": f"MIG-{uuid}/{at + 1}/0" if old else next(new),
            }
            for at in range(draw(st.integers(0, 7)))
        ]
        gpus.append({"index": index, "name": draw(st.sampled_from(NAMES)), "uuid": uuid, "mig": mig})
    return {"kind": "list", "gpus": gpus}


def list_lines(facts: dict[str, Any], pad: bool = True) -> list[str]:
    """As the driver prints it; ``pad``: MIG devices in columns."""
    lines = []
    for gpu in facts["gpus"]:
        lines.append(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        for part in gpu["mig"]:
            profile = part["profile"].ljust(11) if pad else part["profile"]
            number = f"{part['index']:>2}" if pad else part["index"]
            lines.append(f"  MIG {profile} Device {number}: (UUID: {part['uuid']})")
    return lines


@dataclass(frozen=True)
class Column:
    """A field of a query: its heading's unit, and how a number is printed and kept."""

    name: str
    unit: str | None
    values: st.SearchStrategy[tuple[str, Any]]


def _counts(most: int) -> st.SearchStrategy[tuple[str, Any]]:
    return st.integers(0, most).map(lambda n: (str(n), n))


def _watts() -> st.SearchStrategy[tuple[str, Any]]:
    return st.integers(0, 90000).map(lambda n: (f"{n / 100:.2f}", n / 100))


def _texts(*options: str) -> st.SearchStrategy[tuple[str, Any]]:
    return st.sampled_from(options).map(lambda text: (text, text))


COLUMNS = (
    Column("index", None, _counts(15)),
    Column("name", None, _texts(*NAMES)),
    Column("uuid", None, ids().map(lambda text: (text, text))),
    Column("pci.bus_id", None, _texts("00000000:0A:00.0", "00000001:C2:00.0")),
    Column("memory.total", "MiB", _counts(200_000)),
    Column("memory.used", "MiB", _counts(200_000)),
    Column("utilization.gpu", "%", _counts(100)),
    Column("temperature.gpu", None, _counts(100)),
    Column("power.draw", "W", _watts()),
    Column("clocks.sm", "MHz", _counts(3000)),
    Column("compute_cap", None, _texts("8.6", "9.0", "12.0")),
    Column("driver_version", None, _texts("580.95.05", "390.48")),
    Column("pstate", None, _texts("P0", "P8")),
    Column("mig.mode.current", None, _texts("Enabled", "Disabled")),
    Column("timestamp", None, _texts("2025/05/17 11:47:58.123")),
)


@st.composite
def tables(draw) -> tuple[dict[str, Any], list[str]]:
    """The facts of a table with a heading, and its lines; ``nounits`` or not."""
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=8, unique_by=lambda column: column.name))
    with_units, comma = draw(st.booleans()), draw(st.sampled_from([", ", ","]))
    lines = [comma.join(f"{c.name} [{c.unit}]" if c.unit else c.name for c in columns)]
    rows, nulls = [], []
    for at in range(draw(st.integers(0, 4))):
        row, cells = {}, []
        for column in columns:
            text, value = draw(column.values)
            if draw(st.integers(0, 5)) == 0:
                text, value = draw(st.sampled_from(PLACEHOLDERS)), None
                nulls.append({"row": at, "column": column.name, "text": text})
            elif with_units and column.unit:
                text = f"{text} {column.unit}"
            row[column.name] = value
            cells.append(text)
        rows.append(row)
        lines.append(comma.join(cells))
    units = {column.name: column.unit for column in columns if column.unit}
    return {"kind": "csv", "header": True, "query": None, "units": units, "rows": rows, "nulls": nulls}, lines
