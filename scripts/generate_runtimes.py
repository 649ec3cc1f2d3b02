"""Writes what each server program offers into docs/runtimes.md from the adapters; ``--check``: is it current?"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pages  # noqa: E402

from toolkit import runtimes  # noqa: E402
from toolkit.runtimes.base import Traits  # noqa: E402

PAGE = ROOT / "docs" / "runtimes.md"
SCRIPT = Path(__file__).name
COLUMNS = ("says that it is loaded", "warm-up", "memory", "affinity", "drains", "answers before READY")
# Options, paths, variables and names with underscores are code.
WORDS = (r"--[\w-]+", r"/[a-z]\w*(?:/\w+)*", r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:=\w+)?", r"\w+(?:_\w+)+(?:\.\w+)?")
CODE = re.compile(rf"(?<![\w`/.'-])({'|'.join(WORDS)})")


def main(argv: list[str]) -> int:
    """0 when the page is current, or was made so."""
    return pages.settle(PAGE, SCRIPT, pages.with_part(PAGE, SCRIPT, generated()), check="--check" in argv)


def generated() -> str:
    """A row for each program, then what is known to go wrong with it."""
    traits = {name: runtimes.get(name).traits for name in runtimes.names()}
    lines = [
        f"| program | {' | '.join(COLUMNS)} |",
        "|---" * 7 + "|",
        *(row(name, each) for name, each in traits.items()),
        "",
    ]
    lines.append("Known to go wrong, and what `plan` or a start then says:\n")
    lines += [f"- **{name}**: {marked('; '.join(each.traps))}." for name, each in traits.items() if each.traps]
    return "\n".join(lines) + "\n"


def row(name: str, each: Traits) -> str:
    told = (each.readiness, each.warmup, each.memory_knob, each.affinity)
    answers = ("yes" if each.can_drain else "no", "yes" if each.answers_before_ready else "no")
    return f"| {' | '.join((f'[{name}](#{section(name)})', *map(marked, told), *answers))} |"


def section(name: str) -> str:
    """The anchor of its section: programs that are told together have one."""
    page = PAGE.read_text(encoding="utf-8")
    heads = (line[3:].strip() for line in page.splitlines() if line.startswith("## "))
    head = next((head for head in heads if name in re.split(r"[ ,]+", head)), name)
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def marked(text: str) -> str:
    return CODE.sub(r"`\1`", text).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
