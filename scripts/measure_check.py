"""How long reading an environment and its binaries takes, beside ``import torch`` in the same environment.

    python scripts/measure_check.py [--python PYTHON] [--runs N]

Both run in fresh processes, in turn. Printed: the middle one of the runs, wall clock and processor seconds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHECK = """
import sys
from pathlib import Path
from toolkit.environments import binaries, reading
from toolkit.environments.loader import Files
files = Files()
environment = reading.read(Path(sys.argv[1]), files=files)
found = binaries.read(environment, files=files, everything=sys.argv[2] == "all")
print(len(environment.distributions), found.selection.looked_at, len(found.files))
"""


def measure(argv: list[str]) -> tuple[float, float, str]:
    """Wall-clock seconds, processor seconds and output of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{' '.join(argv[:2])}: {done.stderr.strip()[-500:]}")
    processor_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, processor_s, done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the environment to read (default: this one)")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    tasks = {
        "import torch": [options.python, "-c", "import torch"],
        "read, files that matter": [sys.executable, "-c", CHECK, options.python, "some"],
        "read, every extension": [sys.executable, "-c", CHECK, options.python, "all"],
    }
    runs: dict[str, list[tuple[float, float, str]]] = {name: [] for name in tasks}
    for _ in range(options.runs):
        for name, argv in tasks.items():
            runs[name].append(measure(argv))
    result = {}
    for name, found in runs.items():
        wall_s, processor_s = (statistics.median(run[at] for run in found) for at in (0, 1))
        counts = found[0][2].split()
        result[name] = {"wall_s": round(wall_s, 3), "processor_s": round(processor_s, 3)}
        if counts:
            result[name] |= dict(zip(("distributions", "files_seen", "files_judged"), map(int, counts), strict=True))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
