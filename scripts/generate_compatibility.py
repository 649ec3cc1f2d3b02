"""Writes docs/compatibility.md from the facts; ``--check`` only says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from toolkit import facts  # noqa: E402
from toolkit.compat import page  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"


def main(argv: list[str]) -> int:
    """0 when the page is current, or was made so."""
    text = page.page(facts.load())
    current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if "--check" in argv:
        print("current" if current else f"{PAGE} is not current: run scripts/generate_compatibility.py")
        return 0 if current else 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{'kept' if current else 'wrote'} {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
