"""Writes docs/compatibility.md from the facts; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pages  # noqa: E402

from toolkit import facts  # noqa: E402
from toolkit.compat import page  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
SCRIPT = Path(__file__).name


def main(argv: list[str]) -> int:
    """0 when the page is current, or was made so."""
    return pages.settle(PAGE, SCRIPT, page.page(facts.load()), check="--check" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
