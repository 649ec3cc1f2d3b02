"""``/proc/PID/numa_maps``: on which NUMA node a process has its pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_NODE = re.compile(r"N(\d+)=(\d+)")
_PAGE_KB = re.compile(r"kernelpagesize_kB=(\d+)")
_DEFAULT_PAGE_KB = 4


@dataclass(frozen=True)
class Placement:
    """Bytes of anonymous memory per node, and the part on planned nodes; ``why`` says what could not be measured.

    File pages are left out: they are shared with whoever read the file first, and no policy moves them.
    """

    bytes_by_node: dict[int, int]
    on_plan_percent: float | None
    why: str | None = None


def anonymous_bytes(text: str) -> dict[int, int]:
    """Bytes per node of memory that belongs to no file; huge pages count with their own size."""
    sizes: Counter[int] = Counter()
    for line in text.splitlines():
        if _is_anonymous(line):
            found = _PAGE_KB.search(line)
            page_bytes = 1024 * (int(found[1]) if found else _DEFAULT_PAGE_KB)
            sizes.update({node: pages * page_bytes for node, pages in _node_pages(line)})
    return dict(sorted(sizes.items()))


def measure(pids: Iterable[int], nodes: Iterable[int], node_count: int, proc: Path = Path("/proc")) -> Placement:
    """Where the processes have their memory, against the nodes they were planned on.

    Reading takes each process's memory map lock for a moment: not for a hot loop.
    """
    if node_count < 2:
        return Placement({}, None, "not measurable: this host has one NUMA node")
    sizes: Counter[int] = Counter()
    for pid in pids:
        text = _read(proc / str(pid) / "numa_maps")
        if text is None:
            return Placement({}, None, f"not measurable: numa_maps of process {pid} may not be read")
        sizes.update(anonymous_bytes(text))
    return _placed(dict(sorted(sizes.items())), set(nodes))


def _read(path: Path) -> str | None:
    """The text, empty for a process that ended meanwhile; None: we may not read it."""
    try:
        return path.read_text(errors="replace")
    except PermissionError:
        return None
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _placed(sizes: dict[int, int], nodes: set[int]) -> Placement:
    total_bytes = sum(sizes.values())
    if not nodes:
        return Placement(sizes, None, "not measurable: no NUMA node was planned")
    if not total_bytes:
        return Placement(sizes, None, "not measurable: no pages were found")
    return Placement(sizes, 100.0 * sum(sizes.get(node, 0) for node in nodes) / total_bytes)


def _is_anonymous(line: str) -> bool:
    # A name may hold spaces as \\040 but no blank, so the words are safe to look at.
    return not any(word.startswith("file=") for word in line.split()[2:])


def _node_pages(line: str) -> Iterator[tuple[int, int]]:
    for word in line.split()[2:]:
        if match := _NODE.fullmatch(word):
            yield int(match[1]), int(match[2])
