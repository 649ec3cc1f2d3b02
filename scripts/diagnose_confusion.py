"""Prints the confusion table of the log corpus: what each class of log is taken for, and every wrong answer.

Usage: python scripts/diagnose_confusion.py [FOLDER]   (a folder with expected.yaml and its logs)
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import yaml

from toolkit.diagnose import classify

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "diagnose" / "logs"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    expected = yaml.safe_load((folder / "expected.yaml").read_text(encoding="utf-8"))
    table: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for entry in expected:
        with (folder / entry["file"]).open("rb") as file:
            found = classify(file)
        table[entry["class"], found.kind] += 1
        want = (entry["class"], entry["verdict"], entry["root_line"], entry["culprit"])
        got = (found.kind, found.verdict, found.root_line, found.culprit if entry["culprit"] else None)
        if want != got:
            wrong += 1
            print(f"{entry['file']}: want {want}\n{'':>{len(entry['file'])}}   got {got}  [{found.pattern}]")
    print(f"\n{'class of the log':28} taken for")
    for (want_class, got_class), count in sorted(table.items()):
        print(f"{want_class:28} {got_class:28} {count:3}{'' if want_class == got_class else '   <-- wrong'}")
    print(f"\n{len(expected) - wrong} of {len(expected)} right in class, verdict, root line and culprit")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
