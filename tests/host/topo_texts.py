"""Made-up topologies and the ways in which programs, terminals and people print them."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from toolkit.units import format_cpu_list

LINKS = ["NV1", "NV2", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"]
ORDER = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
HEADS = {"cpus": "CPU Affinity", "numa": "NUMA Affinity", "gpu_numa_id": "GPU NUMA ID"}
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@dataclass(frozen=True)
class Topology:
    """``tail`` names the affinity columns; ``values`` per GPU and column, '' blank, 'N/A' unknown."""

    gpus: int
    nics: tuple[str, ...]
    legend: dict[str, str]
    cells: dict[tuple[int, int], str]
    tail: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def names(self):
        return [f"GPU{index}" for index in range(self.gpus)] + list(self.nics)

    def cell(self, row, column):
        return " X " if row == column else self.cells[min(row, column), max(row, column)]

    def facts(self):
        gpus = range(self.gpus)
        return {
            "kind": "topo",
            "verdict": "ok",
            "reason": None,
            "gpus": [self._gpu(index) for index in gpus],
            "links": {f"{a}-{b}": self.cells[a, b] for a in gpus for b in gpus if a < b},
            "nics": {nic: self.legend.get(nic, None if nic.startswith("NIC") else nic) for nic in self.nics},
            "nearest_nics": {str(index): self._nearest(index)[0] for index in gpus},
            "nearest_level": {str(index): self._nearest(index)[1] for index in gpus},
            "missing_rows": [],
        }

    def _gpu(self, index):
        said = {key: text for key, text in zip(self.tail, self.values[index], strict=True) if text not in ("", "N/A")}
        numa, own = said.get("numa"), said.get("gpu_numa_id")
        return {
            "index": index,
            "cpus": said.get("cpus"),
            "numa": None if numa is None else _expand(numa),
            "gpu_numa_id": None if own is None else int(own),
        }

    def _nearest(self, index):
        levels = {nic: self.cells[index, self.gpus + at] for at, nic in enumerate(self.nics)}
        closest = min(levels.values(), key=ORDER.__getitem__, default=None)
        return [nic for nic, level in levels.items() if level == closest], closest


def _expand(text):
    nodes = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        nodes += range(int(first), int(last or first) + 1)
    return nodes


@st.composite
def topologies(draw, blanks=True):
    gpus, nic_count = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    modern = draw(st.booleans())
    nics = tuple(f"NIC{at}" if modern else f"mlx5_{at}" for at in range(nic_count))
    cells = {}
    for a in range(gpus + nic_count):
        for b in range(a + 1, gpus + nic_count):
            cells[a, b] = draw(st.sampled_from(LINKS if b < gpus else LINKS[5:]))
    tail = tuple(HEADS)[: draw(st.integers(1, 3))]
    unknown = ["N/A", ""] if blanks else ["N/A"]
    kinds = {"cpus": _lists(254) | st.sampled_from(unknown), "numa": _lists(33) | st.sampled_from(unknown)}
    kinds["gpu_numa_id"] = st.integers(0, 40).map(str) | st.just("N/A")
    values = tuple(tuple(draw(kinds[key]) for key in tail) for _ in range(gpus))
    with_legend = modern and draw(st.booleans())
    return Topology(gpus, nics, {n: f"mlx5_{n[3:]}" for n in nics} if with_legend else {}, cells, tail, values)


def _lists(largest):
    return st.sets(st.integers(0, largest), min_size=1, max_size=12).map(format_cpu_list)


def as_tabs(topology: Topology) -> list[str]:
    """As the driver prints: one tab after a cell, two before the GPU NUMA ID, two for a blank list."""
    lines = ["\t" + "\t".join([*topology.names, *(HEADS[key] for key in topology.tail)])]
    for row, name in enumerate(topology.names):
        line = name + "\t" + "\t".join(topology.cell(row, column) for column in range(len(topology.names)))
        values = topology.values[row] if row < topology.gpus else ("",) * len(topology.tail)
        for at, text in enumerate(values):
            line += ("\t\t" if at == 2 else "\t") + (text or ("\t" if at < 2 else ""))
        lines.append(line)
    return lines


def as_padding(topology: Topology, width: int) -> list[str]:
    """Columns under their headings, ``width`` characters a device, nothing after the last value."""
    width = max([width, *(len(name) + 1 for name in topology.names)])
    lines = [" " * width + "".join(name.ljust(width) for name in topology.names)]
    lines[0] += "".join(HEADS[key].ljust(50) for key in topology.tail)
    for row, name in enumerate(topology.names):
        line = name.ljust(width)
        line += "".join(topology.cell(row, column).ljust(width) for column in range(len(topology.names)))
        if row < topology.gpus:
            line += "".join(text.ljust(50) for text in topology.values[row])
        lines.append(line.rstrip())
    return lines


STYLES = {
    "tabs": as_tabs,
    "stops": lambda topology: [line.expandtabs(8).rstrip() for line in as_tabs(topology)],
    "eight": lambda topology: as_padding(topology, 8),
    "seven": lambda topology: as_padding(topology, 7),
    "six": lambda topology: as_padding(topology, 6),
    "one blank": lambda topology: [" ".join(line.split()) for line in as_tabs(topology)],
    "blank a tab": lambda topology: [line.replace("\t", " ") for line in as_tabs(topology)],
}


def text_of(topology: Topology, lines: list[str]) -> str:
    legend = LEGEND if topology.legend else ""
    if topology.legend:
        legend += "\nNIC Legend:\n\n" + "".join(f"  {nic}: {name}\n" for nic, name in topology.legend.items())
    return "\n".join(lines) + "\n" + legend
