#!/usr/bin/env python3
"""Boots 'transformers serve --continuous-batching' N times under coexist and prints how honest READY was.

    python scripts/measure_warmup.py --boots 20 --json readings.json

For each boot: when /health first said 200, when coexist said READY, first-token times of the proof, the first unseen
request after READY over the median of steady ones of its length, and compiles after READY. '--bare' also boots the
program without coexist and sends it requests from the moment /health is 200: what a user would meet.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from toolkit.runtimes import environment
from toolkit.warm import prompts

ROOT = Path(__file__).resolve().parents[1]
COEXIST = Path(sys.executable).with_name("coexist")
TRANSFORMERS = Path(sys.executable).with_name("transformers")
OPTIONS = {"continuous-batching": True, "cb-num-blocks": 64}
BARE_REQUESTS = 12
# Threads that spin would be measured too: both sides have what coexist gives its services.
CORES = str(len(os.sched_getaffinity(0)))
SAME_AS_SERVICES = {**environment.FIXED, **dict.fromkeys(environment.THREAD_COUNTS, CORES)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def boot(model: Path, environ: dict[str, str], folder: Path) -> dict[str, Any] | str:
    """What one boot says of its service, or in words why it never became ready."""
    service = {"runtime": "transformers", "model": str(model), "port": free_port(), "options": OPTIONS}
    config = folder / "deploy.yaml"
    config.write_text(yaml.safe_dump({"version": 1, "name": "measure-warmup", "services": {"chat": service}}))
    command = [COEXIST, "up", config, "--exit-when-ready", "--json"]
    began_s = time.monotonic()
    done = subprocess.run(command, env=environ, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        return f"exit {done.returncode}: {done.stdout[:400]} {done.stderr[-400:]}"
    (told,) = json.loads(done.stdout)["services"]
    stages = {stage["state"]: stage["seconds"] for stage in told["stages"]}
    first = told["first_token_ms"]
    return {
        "seconds": time.monotonic() - began_s,
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
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument("--boots", type=int, default=20)
    parser.add_argument("--bare", type=int, default=1, help="boots without coexist")
    parser.add_argument("--json", type=Path, help="write the numbers here too, after each boot")
    asked = parser.parse_args()
    unwarmed = [bare(asked.model) for _ in range(asked.bare)]
    if asked.json:
        asked.json.write_text(json.dumps({"boots": [], "bare": unwarmed}, indent=1) + "\n")
    boots: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run").mkdir(mode=0o700)
        places = {"COEXIST_HOME": str(folder / "home"), "COEXIST_RUNTIME_DIR": str(folder / "run")}
        for number in range(asked.boots):
            found = boot(asked.model, {**os.environ, **places}, folder)
            if isinstance(found, str):
                print(f"boot {number + 1}/{asked.boots} did not become ready: {found}", file=sys.stderr)
                continue
            boots.append(found)
            print(f"boot {number + 1}/{asked.boots}: ratio {found['ratio']:.2f}", file=sys.stderr)
            if asked.json:
                asked.json.write_text(json.dumps({"boots": boots, "bare": unwarmed}, indent=1) + "\n")
    show(boots, unwarmed)


if __name__ == "__main__":
    main()
