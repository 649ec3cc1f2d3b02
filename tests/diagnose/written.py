"""Start logs written from a decisive passage: the ordinary lines of a server around it, echoes, prefixes and noise."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT_MARK = "»"
_DATA = yaml.safe_load(Path(__file__).with_name("written_servers.yaml").read_text(encoding="utf-8"))
PHASES = ("boot", "init", "weights", "memory", "ready", "served")
MODELS = ("qwen2.5-7b-instruct", "llama-3.3-70b-fp8", "gemma-2-27b-it", "phi-4", "mixtral-8x7b", "deepseek-v2-lite")
PYTHONS = (
    "/usr/local/lib/python3.12/dist-packages",
    "/opt/venv/lib/python3.11/site-packages",
    "/home/llm/miniforge3/envs/serve/lib/python3.10/site-packages",
    "/srv/roles/chat/.venv/lib/python3.12/site-packages",
)


@dataclass(frozen=True)
class Log:
    """One written log: its bytes and the number of the line that decides (None: there is none)."""

    data: bytes
    root_line: int | None


@dataclass
class _Clock:
    random: random.Random
    second: float = 0.0

    def at(self, form: str) -> str:
        """The form with its stamps filled in, a moment later than the one before."""
        self.second += self.random.choice((0.01, 0.2, 0.7, 1.3))
        total = int(self.second)
        hour, minute, second = 9 + total // 3600, total // 60 % 60, total % 60
        micro = f"{self.random.randrange(10**6):06d}"
        return form.format(d="14", h=f"{hour:02d}", m=f"{minute:02d}", s=f"{second:02d}", u=micro)


def write(case: Mapping[str, Any], seed: int) -> Log:
    """The log of one case; the same seed writes the same log."""
    rng = random.Random(f"{case['id']}/{seed}")
    names = {
        "py": rng.choice(PYTHONS),
        "model": rng.choice(MODELS),
        "pid": str(rng.randrange(80, 900)),
        "host": rng.choice(("gpu01", "node17", "dgx-3", "llm-0")),
    }
    clock = _Clock(rng)
    phases = PHASES[: PHASES.index(case["at"]) + 1] if "at" in case else ()
    lines = _passage(case, "head", names)
    lines += _ordinary(_DATA["servers"][case["server"]], phases, clock, names)
    lines += _prefixed(_passage(case, "log", names), case.get("pre", ""), clock, names)
    lines += [_filled(line, names) for line in _DATA["tails"][case["tail"]]] if "tail" in case else []
    return _rendered(lines, case.get("wrap", ""), clock, rng, names)


def _passage(case: Mapping[str, Any], key: str, names: Mapping[str, str]) -> list[str]:
    return [_filled(line, names) for line in case[key].rstrip("\n").split("\n")] if case.get(key) else []


def _filled(line: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        line = line.replace(f"%{name}%", value)
    return line


def _prefixed(lines: Sequence[str], prefix: str, clock: _Clock, names: Mapping[str, str]) -> Iterator[str]:
    for line in lines:
        mark = ROOT_MARK if line.startswith(ROOT_MARK) else ""
        yield mark + clock.at(_filled(_DATA["prefixes"][prefix], names)) + line[len(mark) :] if prefix else line


_Steps = Mapping[str, Sequence[str]]


def _ordinary(steps: _Steps, phases: Sequence[str], clock: _Clock, names: Mapping[str, str]) -> Iterator[str]:
    """The lines of a server up to the last of the phases."""
    for phase in phases:
        for line in steps.get(phase, ()):
            yield clock.at(_filled(line, names))


def _rendered(lines: Sequence[str], wrap: str, clock: _Clock, rng: random.Random, names: Mapping[str, str]) -> Log:
    root = next((number for number, line in enumerate(lines, 1) if line.startswith(ROOT_MARK)), None)
    stamp = _filled(_DATA["wraps"][wrap], names)
    text = ("\r\n" if wrap == "crlf" else "\n").join(clock.at(stamp) + line.removeprefix(ROOT_MARK) for line in lines)
    data = text.encode() + (b"" if rng.random() < 0.2 else b"\n")
    return Log(data.replace(b"starting pid", b"starting \xff\xfe pid") if rng.random() < 0.3 else data, root)
