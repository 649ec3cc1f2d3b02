"""Small files of /sys and /proc; what can't be read is None."""

from __future__ import annotations

from pathlib import Path

from toolkit.units import parse_cpu_list


def read_text(path: Path) -> str | None:
    """The file's text without blanks around it; None when it can't be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):
        return None


def read_int(path: Path) -> int | None:
    """The number in the file; None when there is none."""
    return to_int(read_text(path))


def read_cpus(path: Path) -> tuple[int, ...] | None:
    """The kernel's CPU or node list in the file; None when it can't be read, () when it is empty."""
    return to_cpus(read_text(path))


def to_int(text: str | None) -> int | None:
    """The number that the text is; None when it is none."""
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def to_cpus(text: str | None) -> tuple[int, ...] | None:
    """Members of a kernel list; None when the text is none."""
    try:
        return parse_cpu_list(text) if text is not None else None
    except ValueError:
        return None


def fields(text: str | None) -> dict[str, str]:
    """Lines ``key: value`` as a mapping, as in /proc/meminfo and /proc/self/status."""
    pairs = (line.split(":", 1) for line in (text or "").splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
