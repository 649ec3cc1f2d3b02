#!/usr/bin/env python3
"""Draws what 'coexist up' shows when everything is ready, from its JSON, as an SVG.

coexist up configs/quickstart.yaml --exit-when-ready --json | python scripts/draw_up.py docs/up.svg
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console

from toolkit.cli import picture

# Fonts from elsewhere, and a comment: the picture must stand alone.
FONT_FACES = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


def main() -> None:
    status = json.load(sys.stdin)
    console = Console(record=True, width=84, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for part in (picture.timeline(status), picture.parts(status), picture.first_tokens(status)):
        console.print(part)
        console.print()
    svg = console.export_svg(title="coexist up configs/quickstart.yaml")
    Path(sys.argv[1]).write_text(FONT_FACES.sub("", svg))


if __name__ == "__main__":
    main()
