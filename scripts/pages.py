"""Pages of the documentation that scripts write, whole or a part of them, and that tests find current."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end of the generated part -->\n"


def with_part(page: Path, script: str, part: str) -> str:
    """The text of the page with the part that this script generates."""
    begin = f"<!-- generated: scripts/{script} -->\n"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    return before + begin + part + END + rest.partition(END)[2]


def settle(page: Path, script: str, text: str, *, check: bool) -> int:
    """0 when the page is current or was made so; ``check``: 1 when it is not, and nothing is written."""
    current = page.exists() and page.read_text(encoding="utf-8") == text
    if check:
        print("current" if current else f"{page} is not current: run scripts/{script}")
        return 0 if current else 1
    page.write_text(text, encoding="utf-8")
    print(f"{'kept' if current else 'wrote'} {page}")
    return 0
