"""Measures pinning on this machine: threads on plan, what pinning costs a start, and how long the check takes.

Usage: python scripts/measure_affinity.py [--processes N] [--threads N] [--rounds N] [--deployment CONFIG]

With a deployment it is started for real, and every thread of every service is looked at when all are ready.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from toolkit import processes
from toolkit.affinity import (
    MemoryPolicy,
    measure,
    probe_mempolicy_permitted,
    verify,
    wrap,
)
from toolkit.units import format_cpu_list, parse_cpu_list

SERVER = """
import sys, threading
count = int(sys.argv[1])
started = threading.Barrier(count + 1)
def wait():
    memory = bytearray(1 << 20)
    started.wait()
    threading.Event().wait()
for _ in range(count):
    threading.Thread(target=wait, daemon=True).start()
started.wait()
print("up", flush=True)
input()
"""


@dataclass(frozen=True)
class Row:
    name: str
    on_plan_percent: float | None
    threads: int
    verify_ms: float
    memory: str


def main() -> None:
    options = _options()
    cpus = sorted(os.sched_getaffinity(0))
    nodes = _online_nodes()
    permitted = probe_mempolicy_permitted()
    policy = MemoryPolicy("bind", nodes[:1], "measured") if permitted else MemoryPolicy("none", (), "not permitted")
    print(
        f"allowed CPUs {format_cpu_list(cpus)}; NUMA nodes {format_cpu_list(nodes)}; set_mempolicy permitted:",
        permitted,
    )
    rows = [
        _measure("no wrapper, one core planned", options, cpus[:1], None, nodes),
        _measure("pinned to one core", options, cpus[:1], policy, nodes),
        _measure("pinned to all allowed CPUs", options, cpus, policy, nodes),
    ]
    _print_table(rows)
    plain_ms = _median_ms(lambda: _run(["/bin/true"]), options.rounds)
    wrapped_ms = _median_ms(lambda: _run(wrap(["/bin/true"], cpus, policy)), options.rounds)
    print(
        f"start of a process: {plain_ms:.1f} ms, through the wrapper {wrapped_ms:.1f} ms (median of {options.rounds})"
    )
    if options.deployment:
        _print_deployment(options.deployment)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--deployment", type=Path, help="start this deployment and look at its services")
    return parser.parse_args()


def _print_deployment(config: Path) -> None:
    argv = [sys.executable, "-m", "toolkit.cli", "up", str(config), "--exit-when-ready", "--json"]
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, text=True, env={**os.environ, "PYTHONPATH": root})
    document = json.loads(done.stdout)
    if "error" in document:
        raise SystemExit(f"{config}: {document['error']['what']}")
    for service in document["services"]:
        placement = service["placement"]
        on_plan = f"{placement['on_plan_percent']:.1f}% of {placement['threads']} threads on plan"
        print(f"{service['name']:32} {on_plan} (CPUs {service['cpus']}); {'; '.join(placement['not_measurable'])}")
        print("".join(f"  DRIFT {text}\n" for text in placement["drift"]), end="")


def _measure(
    name: str, options: argparse.Namespace, cpus: Sequence[int], policy: MemoryPolicy | None, nodes: tuple[int, ...]
) -> Row:
    command = [sys.executable, "-c", SERVER, str(options.threads)]
    with ExitStack() as stack:
        argv = command if policy is None else wrap(command, cpus, policy)
        pids = [stack.enter_context(_server(argv)) for _ in range(options.processes)]
        tree = processes.tree(pids)
        report = verify(tree, cpus)
        verify_ms = _median_ms(lambda: verify(processes.tree(pids), cpus), options.rounds)
        placement = measure(tree, nodes[:1], len(nodes))
    memory = placement.why or f"{placement.on_plan_percent:.1f}% on plan"
    return Row(name, report.on_plan_percent, report.threads, verify_ms, memory)


@contextmanager
def _server(argv: Sequence[str]) -> Iterator[int]:
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != "up\n":
                raise SystemExit(f"{argv[0]} did not start")
            yield process.pid
        finally:
            process.kill()


def _online_nodes() -> tuple[int, ...]:
    online = Path("/sys/devices/system/node/online")
    return parse_cpu_list(online.read_text().strip()) if online.exists() else (0,)


def _run(argv: Sequence[str]) -> None:
    subprocess.run(argv, check=True)


def _median_ms(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        started_s = time.perf_counter()
        call()
        times.append((time.perf_counter() - started_s) * 1000)
    return statistics.median(times)


def _print_table(rows: Sequence[Row]) -> None:
    print(f"{'':32} {'threads':>8} {'on plan':>8} {'check':>9}  memory")
    for row in rows:
        percent = "-" if row.on_plan_percent is None else f"{row.on_plan_percent:.1f}%"
        print(f"{row.name:32} {row.threads:8} {percent:>8} {row.verify_ms:6.1f} ms  {row.memory}")


if __name__ == "__main__":
    main()
