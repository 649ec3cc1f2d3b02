"""Times the check against 'import torch' in the same environment, each in fresh processes.

    .venv/bin/python scripts/measure_check.py [PYTHON] [--runs N]

Prints one line per thing measured: the median of wall seconds, and of processor seconds. A cold reading of the disk is
not measured: both sides profit from what the kernel keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

DEPLOYMENT = """\
version: 1
name: measure
environments:
  it: {{python: {python}}}
services:
  it: {{runtime: command, environment: it, argv: [sleep, "1"], ready: {{log: ok}}}}
"""
CHECKED = """\
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from toolkit.assemble import check
from toolkit.config import load
from toolkit.home import Home
from toolkit.host import probe
deployment, host, home = load.deployment(Path(sys.argv[1])), probe.probe(), Home(Path(sys.argv[2]))
start = time.perf_counter()
report = check.check_deployment(deployment, host, home)
print(time.perf_counter() - start)
"""


def child(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):  # 1: incompatible, an answer like any other
        sys.exit(f"{' '.join(argv)} failed")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median(runs: int, once: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    once()  # what the kernel keeps is there from now on
    found = [once() for _ in range(runs)]
    return statistics.median(wall for wall, _ in found), statistics.median(cpu for _, cpu in found)


def inside(folder: Path, python: Path, env: dict[str, str], runs: int) -> tuple[float, float]:
    """Seconds of check_deployment by itself: with nothing remembered, and with the answer remembered."""
    file = folder / "deploy.yaml"
    file.write_text(DEPLOYMENT.format(python=python))
    code = CHECKED.format(root=str(ROOT))

    def once(home: Path) -> float:
        argv = [sys.executable, "-c", code, str(file), str(home)]
        return float(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout)

    fresh = [once(folder / f"home{at}") for at in range(runs)]
    return statistics.median(fresh), statistics.median(once(folder / "home0") for _ in range(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="?", type=Path, default=Path(sys.executable))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    python = options.python.absolute()
    with tempfile.TemporaryDirectory() as name:
        env = {**os.environ, "COEXIST_HOME": f"{name}/home"}
        command = [sys.executable, "-m", "toolkit.cli", "check", "--env", f"it={python}", "--json"]
        rows = {
            "import torch": median(options.runs, lambda: child([str(python), "-c", "import torch"], env)),
            "coexist check --env": median(options.runs, lambda: child(command, env)),
            "coexist --version": median(options.runs, lambda: child([*command[:3], "--version"], env)),
        }
        fresh, remembered = inside(Path(name), python, env, options.runs)
    if options.json:
        found = {name: {"wall_s": wall, "cpu_s": cpu} for name, (wall, cpu) in rows.items()}
        print(json.dumps({**found, "check_deployment": {"fresh_s": fresh, "remembered_s": remembered}}))
        return
    for name, (wall, cpu) in rows.items():
        print(f"{name:<22} {wall:7.3f} s wall {cpu:7.3f} s processor")
    print(f"{'check_deployment':<22} {fresh:7.3f} s fresh {remembered:8.4f} s remembered")


if __name__ == "__main__":
    main()
