"""``python -m toolkit.cli``; run as a script it finds this package, whatever lies in the working directory."""

import sys
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from toolkit.cli import main

main()
