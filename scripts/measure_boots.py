#!/usr/bin/env python3
"""Boots a deployment N times and prints how honest READY was, and what a boot costs beside importing torch.

    python scripts/measure_boots.py configs/quickstart.yaml --boots 20

For every service: the first request after READY (unseen prompt and length) over steady requests of its length, and
compiles after READY. For the whole: wall time of 'coexist up --exit-when-ready', stopping included, over the time of
'import torch, transformers' in the same environment; and the time of 'coexist --help'. Engines are built before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COEXIST = Path(sys.executable).with_name("coexist")


def timed(argv: list[str]) -> tuple[float, str]:
    """Seconds and standard output of one command. Raises: CalledProcessError when it fails."""
    began_s = time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
    return time.monotonic() - began_s, done.stdout


def median_s(argv: list[str], runs: int) -> float:
    return statistics.median(timed(argv)[0] for _ in range(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--boots", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    asked = parser.parse_args()

    subprocess.run([COEXIST, "build", asked.config], check=True, stdout=subprocess.DEVNULL)
    up = [str(COEXIST), "up", str(asked.config), "--exit-when-ready", "--json"]
    boots: list[tuple[float, dict[str, Any]]] = []
    for number in range(asked.boots):
        seconds, text = timed(up)
        boots.append((seconds, json.loads(text)))
        print(f"boot {number + 1}/{asked.boots}: {seconds:.2f} s", file=sys.stderr)
    numbers = {
        "boots": asked.boots,
        "services": [service_numbers(name, boots) for name in names(boots)],
        "up_median_s": statistics.median(seconds for seconds, _ in boots),
        "import_median_s": median_s([sys.executable, "-c", "import torch, transformers"], 5),
        "help_median_s": median_s([str(COEXIST), "--help"], 5),
    }
    numbers["up_over_import"] = numbers["up_median_s"] / numbers["import_median_s"]
    show(numbers)
    if asked.json:
        asked.json.write_text(json.dumps(numbers, indent=1) + "\n")


def names(boots: list[tuple[float, dict[str, Any]]]) -> list[str]:
    return [service["name"] for service in boots[0][1]["services"]]


def service_numbers(name: str, boots: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    """Over all boots: the first request's ratio to steady ones, compiles after READY, seconds of each stage."""
    seen = [service for _, status in boots for service in status["services"] if service["name"] == name]
    ratios = [service["first_token_ms"]["first"] / service["first_token_ms"]["p50"] for service in seen]
    stages = {state: [s["seconds"] for x in seen for s in x["stages"] if s["state"] == state] for state in STAGES}
    return {
        "name": name,
        "first_over_steady_median": statistics.median(ratios),
        "first_over_steady_worst": max(ratios),
        "first_token_p50_ms": statistics.median(service["first_token_ms"]["p50"] for service in seen),
        "late_compiles": [service["late_compiles"] for service in seen],
        "stage_median_s": {state: statistics.median(seconds) for state, seconds in stages.items()},
        "canaries_right": sum(service["canary"]["ok"] is True for service in seen),
    }


STAGES = ("INIT", "PRELOAD", "PRIME")


def show(numbers: dict[str, Any]) -> None:
    for service in numbers["services"]:
        stages = ", ".join(f"{state} {seconds:.2f} s" for state, seconds in service["stage_median_s"].items())
        known = [count for count in service["late_compiles"] if count is not None]
        print(
            f"{service['name']}: first/steady median {service['first_over_steady_median']:.2f} "
            f"(worst {service['first_over_steady_worst']:.2f}), steady p50 {service['first_token_p50_ms']:.1f} ms, "
            f"late compiles {sum(known)} (observed in {len(known)} of {numbers['boots']}), "
            f"canaries right {service['canaries_right']}/{numbers['boots']}; {stages}"
        )
    print(
        f"up --exit-when-ready: median {numbers['up_median_s']:.2f} s = {numbers['up_over_import']:.2f}x "
        f"'import torch, transformers' ({numbers['import_median_s']:.2f} s); --help {numbers['help_median_s']:.3f} s"
    )


if __name__ == "__main__":
    main()
