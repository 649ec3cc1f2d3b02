#!/usr/bin/env python3
"""Boots 'transformers serve --continuous-batching' N times under coexist and prints how honest READY was.

    python scripts/measure_warmup.py --boots 20 --json readings.json

For each boot: when /health first said 200, when coexist said READY, first-token times of the proof, the first unseen
request after READY over the median of steady ones of its length, and compiles after READY. '--bare' also boots the
program without coexist and sends it requests from the moment /health is 200: what a user would meet.

With '--json' every boot is kept as it ends. Ctrl-C (or TERM) stops the boot under way and leaves nothing running; the
same command goes on where it was interrupted, with the same caches (kept beside the file until all boots are there).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from ports import free_port

from toolkit.files import write_atomic
from toolkit.runtimes import environment
from toolkit.warm import prompts

ROOT = Path(__file__).resolve().parents[1]
COEXIST = Path(sys.executable).with_name("coexist")
TRANSFORMERS = Path(sys.executable).with_name("transformers")
OPTIONS = {"continuous-batching": True, "cb-num-blocks": 64}
BARE_REQUESTS = 12
STOP_S = 60.0  # for a boot to drain and stop
INTERRUPTED = 130
# Threads that spin would be measured too: both sides have what coexist gives its services.
CORES = str(len(os.sched_getaffinity(0)))
SAME_AS_SERVICES = {**environment.FIXED, **dict.fromkeys(environment.THREAD_COUNTS, CORES)}


@dataclass
class Readings:
    """What was read so far; ``failed``: in words, boots that never became ready. ``file`` None: nothing is kept."""

    file: Path | None = None
    boots: list[dict[str, Any]] = field(default_factory=list)
    bare: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def begun(cls, file: Path | None) -> Readings:
        """Those that the file has."""
        if file is None or not file.exists():
            return cls(file)
        found = json.loads(file.read_text())
        return cls(file, found["boots"], found["bare"], found.get("failed", []))

    @property
    def done(self) -> int:
        """How many boots have ended."""
        return len(self.boots) + len(self.failed)

    def keep(self) -> None:
        """Writes them, whole."""
        if self.file is not None:
            told = asdict(self)
            del told["file"]
            write_atomic(self.file, json.dumps(told, indent=1) + "\n", 0o644)


@contextlib.contextmanager
def place(file: Path | None) -> Iterator[Path]:
    """Where caches and state of all boots are: beside the file, and gone once all is read; or for this time only."""
    if file is None:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
        return
    folder = file.absolute().with_name(f"{file.name}.state")
    folder.mkdir(exist_ok=True)
    yield folder  # an interruption leaves it for the next time
    shutil.rmtree(folder)


def stopped(process: subprocess.Popen[Any]) -> None:
    """It and what it started has ended by itself; killed when that takes too long."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def boot(model: Path, environ: dict[str, str], folder: Path) -> dict[str, Any] | str:
    """What one boot says of its service, or in words why it never became ready."""
    service = {"runtime": "transformers", "model": str(model), "port": free_port(), "options": OPTIONS}
    config = folder / "deploy.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "name": "measure-warmup", "services": {"chat": service}}))
    command = [COEXIST, "up", config, "--exit-when-ready", "--json"]
    began_s = time.monotonic()
    process = subprocess.Popen(
        command, env=environ, cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        output, errors = process.communicate()
    finally:
        stopped(process)
    if process.returncode:
        return f"exit {process.returncode}: {output[:400]} {errors[-400:]}"
    (told,) = json.loads(output)["services"]
    return facts(told, time.monotonic() - began_s)


def facts(told: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What is kept of a boot's status document."""
    stages = {stage["state"]: stage["seconds"] for stage in told["stages"]}
    first = told["first_token_ms"]
    return {
        "seconds": seconds,
        "preload_s": stages["PRELOAD"],
        "prime_s": stages["PRIME"],
        "proof_ms": told["proof"]["first_token_ms"],
        "first_ms": first["first"],
        "steady_ms": first["p50"],
        "ratio": first["first"] / first["p50"],
        "late_compiles": told["late_compiles"],
        "canary": told["canary"]["ok"],
    }


def started(model: Path, port: int) -> subprocess.Popen[bytes]:
    argv = [str(TRANSFORMERS), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    return subprocess.Popen(
        [*argv, "--continuous-batching", "--cb-num-blocks", "64"], env={**os.environ, **SAME_AS_SERVICES},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def bare(model: Path) -> dict[str, Any]:
    """Seconds from exec to /health, and first-token times of the requests that follow it at once."""
    port, began_s = free_port(), time.monotonic()
    process = started(model, port)
    try:
        return asyncio.run(asked_at_once(f"http://127.0.0.1:{port}", str(model), began_s))
    finally:
        stopped(process)


async def asked_at_once(url: str, model: str, began_s: float) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http:
        for _ in range(2400):
            if await healthy(http, url):
                break
            await asyncio.sleep(0.05)
        healthy_s = time.monotonic() - began_s
        times = [await first_token_ms(http, url, model, number) for number in range(BARE_REQUESTS)]
    return {"health_s": healthy_s, "first_token_ms": times}


async def healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False


async def first_token_ms(http: aiohttp.ClientSession, url: str, model: str, number: int) -> float:
    """To the first event that holds text."""
    body = {"model": model, "prompt": prompts.prompt(14, number), "max_tokens": 4, "temperature": 0, "stream": True}
    began_s, first_s = time.monotonic(), None
    async with http.post(f"{url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if first_s is None and line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("text"):
                first_s = time.monotonic()
    return ((first_s or time.monotonic()) - began_s) * 1000


def show(boots: list[dict[str, Any]], unwarmed: list[dict[str, Any]]) -> None:
    for each in unwarmed:
        times = ", ".join(f"{ms:.0f}" for ms in each["first_token_ms"])
        print(f"without coexist: /health after {each['health_s']:.1f} s, then first tokens after {times} ms")
    if not boots:
        return
    ratios = [each["ratio"] for each in boots]
    middle = statistics.median
    steady_ms = middle(each["steady_ms"] for each in boots)
    print(
        f"{len(boots)} boots: first unseen request over steady: median {middle(ratios):.2f}, worst {max(ratios):.2f}; "
        f"within 1.25: {sum(ratio <= 1.25 for ratio in ratios)}; steady {steady_ms:.1f} ms; "
        f"first probe of the proof {middle(b['proof_ms'][0] for b in boots):.1f} ms; "
        f"PRELOAD {middle(b['preload_s'] for b in boots):.2f} s, PRIME {middle(b['prime_s'] for b in boots):.2f} s; "
        f"compiles after READY {[b['late_compiles'] for b in boots]}; canaries right {sum(b['canary'] for b in boots)}"
    )


def read(found: Readings, asked: argparse.Namespace) -> None:
    """Boots until there are as many as were asked for."""
    while len(found.bare) < asked.bare:
        found.bare.append(bare(asked.model))
        found.keep()
    with place(asked.json) as folder:
        (folder / "run").mkdir(mode=0o700, exist_ok=True)
        places = {"COEXIST_HOME": str(folder / "home"), "COEXIST_RUNTIME_DIR": str(folder / "run")}
        while found.done < asked.boots:
            told = boot(asked.model, {**os.environ, **places}, folder)
            number = f"boot {found.done + 1}/{asked.boots}"
            if isinstance(told, str):
                found.failed.append(told)
                print(f"{number} did not become ready: {told}", file=sys.stderr)
            else:
                found.boots.append(told)
                print(f"{number}: ratio {told['ratio']:.2f}", file=sys.stderr)
            found.keep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument("--boots", type=int, default=20, help="in all, those of an interrupted run too")
    parser.add_argument("--bare", type=int, default=1, help="boots without coexist")
    parser.add_argument("--json", type=Path, help="keep the numbers here, boot by boot; what is there counts")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = Readings.begun(asked.json)
    try:
        read(found, asked)
    except KeyboardInterrupt:
        print(f"interrupted after {found.done} of {asked.boots} boots", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        show(found.boots, found.bare)


if __name__ == "__main__":
    main()
