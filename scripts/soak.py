#!/usr/bin/env python3
"""Keeps an engine server at its limit for some minutes, and says whether anything went wrong or grew.

    python scripts/soak.py ENGINE_DIR --minutes 20

The client is bounded: so many requests are under way at once, more than slots and queue take, so some are refused with
429 and sent again a little later; some clients leave in the middle. Errors are all other answers, and broken streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from ports import free_port

RUN = Path(__file__).resolve().parents[1] / "toolkit" / "serve" / "run.py"
TOKEN = "soak"  # noqa: S105 - of a server that lives as long as this script
WORDS = ("the", "river", "light", "keeper", "seven", "under", "glass", "why", "and", "north", "paper", "song")
RANDOM = random.Random(7)  # noqa: S311 - no secret is drawn
LEAVES = 0.1  # share of the clients that leave after a few chunks


async def one(session: aiohttp.ClientSession, url: str, seen: Counter[str]) -> None:
    """One request of random length; its end is counted."""
    body: dict[str, Any] = {
        "prompt": " ".join(RANDOM.choices(WORDS, k=RANDOM.randint(1, 200))),
        "stream": True,
        "max_tokens": RANDOM.randint(1, 64),
        "temperature": RANDOM.choice((0, 1)),
        "stop": RANDOM.choice((None, ".")),
    }
    leave_after = RANDOM.randint(1, 5) if RANDOM.random() < LEAVES else None
    try:
        async with session.post(f"{url}/v1/completions", json=body) as answer:
            seen[await read(answer, leave_after)] += 1
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        seen[type(error).__name__] += 1


async def read(answer: aiohttp.ClientResponse, leave_after: int | None) -> str:
    """How a request ended: done, left, its status when it was refused, or broken."""
    if answer.status != 200:
        await answer.read()
        await asyncio.sleep(0.2)
        return str(answer.status)
    number = 0
    async for line in answer.content:
        number += line.startswith(b"data: {")
        if b'"error"' in line:
            return "error in stream"
        if line.startswith(b"data: [DONE]"):
            return "done"
        if number == leave_after:
            return "left"
    return "broken"


async def client(session: aiohttp.ClientSession, url: str, until_s: float, seen: Counter[str]) -> None:
    while time.monotonic() < until_s:
        await one(session, url, seen)


async def watch(pid: int, until_s: float, every_s: float) -> list[tuple[int, int]]:
    """Resident bytes and open descriptors of the server, read now and then."""
    process, seen = psutil.Process(pid), list[tuple[int, int]]()
    while time.monotonic() < until_s:
        seen.append((process.memory_info().rss, process.num_fds()))
        print(f"{seen[-1][0] / 2**20:.0f} MiB, {seen[-1][1]} descriptors", file=sys.stderr)
        await asyncio.sleep(every_s)
    return seen


async def started(session: aiohttp.ClientSession, url: str) -> None:
    """The server is warm and open to everybody afterwards."""
    headers = {"X-Coexist-Token": TOKEN}
    for path in ("/v1/warmup", "/v1/register"):
        while True:
            try:
                async with session.post(url + path, headers=headers) as answer:
                    if answer.status == 200:
                        break
            except aiohttp.ClientError:
                pass  # it does not listen yet
            await asyncio.sleep(0.05)


async def soak(url: str, pid: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Ends by kind, and memory and descriptors of the second and the last tenth."""
    seen: Counter[str] = Counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        await started(session, url)
        until_s = time.monotonic() + 60 * asked.minutes
        clients = [client(session, url, until_s, seen) for _ in range(asked.clients)]
        watched, *_ = await asyncio.gather(watch(pid, until_s, max(0.5, asked.minutes / 4)), *clients)
    return {"ends": dict(seen), "errors": sum(seen.values()) - sum(seen[name] for name in FINE), **growth(watched)}


FINE = ("done", "left", "429")


def growth(watched: Sequence[tuple[int, int]]) -> dict[str, float]:
    tenth = max(1, len(watched) // 10)
    early, late = watched[tenth : 2 * tenth], watched[-tenth:]
    median = statistics.median
    return {
        "rss_early_mib": median(rss for rss, _ in early) / 2**20,
        "rss_late_mib": median(rss for rss, _ in late) / 2**20,
        "rss_most_mib": max(rss for rss, _ in watched) / 2**20,
        "descriptors_early": median(count for _, count in early),
        "descriptors_late": median(count for _, count in late),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine_dir", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--max-queue", type=int, default=4)
    parser.add_argument("--log", type=Path, default=Path("/tmp/soak.log"))  # noqa: S108
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    port = free_port()
    argv = [sys.executable, str(RUN), "engine", "--engine-dir", str(asked.engine_dir), "--port", str(port)]
    env = {**os.environ, "COEXIST_TOKEN": TOKEN, "GOMP_SPINCOUNT": "1000"}
    with asked.log.open("wb") as log:
        server = subprocess.Popen([*argv, "--max-queue", str(asked.max_queue)], env=env, stdout=log, stderr=log)
    try:
        numbers = asyncio.run(soak(f"http://127.0.0.1:{port}", server.pid, asked))
    finally:
        server.terminate()
        server.wait(30)
    print(json.dumps(numbers, indent=1))
    sys.exit(1 if numbers["errors"] else 0)


if __name__ == "__main__":
    main()
