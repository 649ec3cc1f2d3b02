#!/usr/bin/env python3
"""Compares coexist's built-in servers with what people use instead, in one run, and prints ratios.

    python scripts/measure_servers.py configs/quickstart.yaml --parts engine boot --rounds 5

engine: 'transformers serve', plain and with continuous batching, beside the engine server: same model, dtype, cores,
threads and greedy prompts. The servers are asked by turns; what is printed are medians over the rounds.
frontend: sentence-transformers beside the frontend, texts per second; see measure_frontend.py for what is fair in it.
boot: 'coexist up', every service proven ready, beside the time of 'transformers serve' to its /health.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measure_frontend
from ports import free_port

from toolkit.config import load

BIN = Path(sys.executable).parent
RUN = Path(__file__).resolve().parents[1] / "toolkit" / "serve" / "run.py"
TOKEN = "measured"  # noqa: S105 - of a server that lives as long as this script
BOOT_TIMEOUT_S = 180.0
PROMPT = "Here is a long story about a lighthouse keeper and her cat. Once upon a time,"


@dataclass(frozen=True)
class Program:
    """One server to be measured: how it is started, and the name that its model has there."""

    name: str
    argv: tuple[str, ...]
    port: int
    model: str
    env: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@dataclass(frozen=True)
class Streamed:
    """One streamed answer: seconds to its first text and from there to its last, and its tokens."""

    first_s: float
    rest_s: float
    tokens: int

    @property
    def per_token_s(self) -> float:
        return self.rest_s / max(1, self.tokens - 1)


# Servers


def process_env(threads: int, more: dict[str, str]) -> dict[str, str]:
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    same = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "GOMP_SPINCOUNT": "1000"}  # as coexist sets them
    return {**kept, **same, **counts, **more}


@contextlib.contextmanager
def running(argv: Sequence[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to leave at the end, and killed when it does not."""
    with log.open("ab") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def healthy(session: aiohttp.ClientSession, url: str, process: subprocess.Popen[bytes]) -> None:
    """Returns when /health answers 200. Raises: RuntimeError when the process ends or the time is over."""
    deadline_s = time.monotonic() + BOOT_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.02)
    raise RuntimeError(f"{url} did not become healthy")


# Asking


async def stream(session: aiohttp.ClientSession, program: Program, prompt: str, max_tokens: int) -> Streamed:
    """One greedy completion, timed as its client sees it."""
    body = {"model": program.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    began_s, moments, tokens = time.perf_counter(), list[float](), 0
    async with session.post(f"{program.url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if any(choice.get("text") for choice in chunk["choices"]):
                moments.append(time.perf_counter())
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return Streamed(moments[0] - began_s, moments[-1] - moments[0], tokens)


async def together(session: aiohttp.ClientSession, program: Program, count: int, max_tokens: int) -> float:
    """Tokens per second of so many requests that are sent at once."""
    began_s = time.perf_counter()
    prompts = [f"{PROMPT} {start}" for start in random.sample(("the", "a", "there", "when", "one", "in"), count)]
    answers = await asyncio.gather(*(stream(session, program, prompt, max_tokens) for prompt in prompts))
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - began_s)


async def register(session: aiohttp.ClientSession, program: Program) -> None:
    """The engine server is loaded, warm and open to everybody afterwards."""
    headers = {"X-Coexist-Token": TOKEN}
    while True:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(f"{program.url}/v1/warmup", json={"mode": "full"}, headers=headers) as answer:
                if answer.status == 200:
                    break
        await asyncio.sleep(0.05)
    await session.post(f"{program.url}/v1/register", headers=headers)


# Engine part


def ours(engine_dir: Path) -> Program:
    port = free_port()
    argv = (sys.executable, str(RUN), "engine", "--engine-dir", str(engine_dir), "--port", str(port))
    argv = (*argv, "--served-model-name", "measured", "--device", "cpu")
    return Program("coexist", argv, port, "measured", {"COEXIST_TOKEN": TOKEN})


def theirs(asked: Asked, *, batching: bool) -> Program:
    port, model = free_port(), str(asked.model)
    flags = ("--port", str(port), "--host", "127.0.0.1", "--dtype", asked.dtype)
    # Its cache takes half of the machine's memory by default; what four requests need is far less.
    mode = ("--continuous-batching", "--cb-max-memory-percent", "0.1") if batching else ()
    name = " ".join(("transformers serve", *mode[:1]))
    return Program(name, (str(asked.transformers), "serve", model, *flags, *mode), port, model)


@contextlib.asynccontextmanager
async def asked_servers(programs: Sequence[Program], threads: int, log: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A session; all servers are up and have answered once."""
    with contextlib.ExitStack() as stack:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
            for program in programs:
                process = stack.enter_context(running(program.argv, process_env(threads, program.env), log))
                if "COEXIST_TOKEN" in program.env:
                    await register(session, program)
                await healthy(session, program.url, process)
                await stream(session, program, PROMPT, 8)
            yield session


async def engine_part(asked: Asked) -> dict[str, Any]:
    """Per server the medians of first token, time per token, and tokens per second of four at once."""
    programs = [ours(asked.engine_dir)]
    programs += [theirs(asked, batching=batching) for batching in (False, True)]
    seen: dict[str, list[tuple[Streamed, float]]] = {program.name: [] for program in programs}
    async with asked_servers(programs, asked.threads, asked.log) as session:
        for number in range(asked.rounds):
            for program in random.sample(programs, len(programs)):
                try:
                    alone = [await stream(session, program, PROMPT, asked.tokens) for _ in range(2)][-1]
                    rate = await together(session, program, 4, asked.tokens)
                except (aiohttp.ClientError, IndexError) as e:
                    print(f"{program.name}: {e!r}", file=sys.stderr)
                    continue
                seen[program.name].append((alone, rate))
                print(f"round {number + 1} {program.name}: {line(summary([(alone, rate)]))}", file=sys.stderr)
    return {"servers": {name: summary(rounds) for name, rounds in seen.items() if rounds}}


def summary(rounds: Sequence[tuple[Streamed, float]]) -> dict[str, float]:
    median = statistics.median
    return {
        "first_token_ms": median(one.first_s for one, _ in rounds) * 1e3,
        "per_token_ms": median(one.per_token_s for one, _ in rounds) * 1e3,
        "four_tokens_per_s": median(rate for _, rate in rounds),
    }


def line(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in numbers.items())


def show_engine(part: dict[str, Any]) -> None:
    servers = dict(part["servers"])
    for name, numbers in servers.items():
        print(f"engine: {name}: {line(numbers)}")
    mine = servers.pop("coexist")
    for name, better in (("first_token_ms", min), ("per_token_ms", min), ("four_tokens_per_s", max)):
        best = better(other[name] for other in servers.values())
        print(f"engine: {name}: {mine[name] / best:.2f}x the better of theirs")


# Boot part


async def boot_seconds(argv: Sequence[str], env: dict[str, str], urls: Sequence[str], log: Path) -> float:
    """Seconds from starting a process until all these URLs are healthy; it is stopped afterwards."""
    began_s = time.perf_counter()
    with running(argv, env, log) as process:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(healthy(session, url, process) for url in urls))
            return time.perf_counter() - began_s


async def boot_part(asked: Asked) -> dict[str, Any]:
    """Median seconds of both, started by turns; the first boot of ours (a build may be in it) is not counted."""
    up = (str(BIN / "coexist"), "up", str(asked.config))
    seconds: dict[str, list[float]] = {"coexist": [], "transformers": []}
    for _ in range(asked.boots + 1):
        seconds["coexist"].append(await boot_seconds(up, dict(os.environ), asked.service_urls, asked.log))
        other = theirs(asked, batching=False)
        env = process_env(asked.threads, other.env)
        seconds["transformers"].append(await boot_seconds(other.argv, env, [other.url], asked.log))
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def show_boot(part: dict[str, Any]) -> None:
    ratio = part["coexist"] / part["transformers"]
    print(f"boot: every service proven ready after {part['coexist']:.2f} s, transformers serve healthy after", end=" ")
    print(f"{part['transformers']:.2f} s: {ratio:.2f}x")


# Frontend part


async def frontend_part(asked: Asked) -> dict[str, Any]:
    """Texts per second beside sentence-transformers, as 'measure_frontend.py' reads them."""
    return await asyncio.to_thread(
        measure_frontend.measure, asked.embedding_model, asked.threads, asked.rounds, measure_frontend.TEXTS
    )


# The whole


@dataclass(frozen=True)
class Asked:
    """What is measured, and on what."""

    config: Path
    engine_dir: Path
    model: Path
    embedding_model: Path
    dtype: str
    service_urls: tuple[str, ...]
    rounds: int
    boots: int
    tokens: int
    threads: int
    log: Path
    transformers: Path


Part = tuple[Callable[[Asked], Coroutine[Any, Any, dict[str, Any]]], Callable[[dict[str, Any]], None]]
PARTS: dict[str, Part] = {
    "engine": (engine_part, show_engine),
    "boot": (boot_part, show_boot),
    "frontend": (frontend_part, measure_frontend.show),
}


def read(options: argparse.Namespace) -> Asked:
    """The deployment's engine, built where needed, and the model it was made of."""
    deployment = load.deployment(options.config)
    build = [str(BIN / "coexist"), "build", str(options.config), "--json"]
    built = json.loads(subprocess.run(build, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    engine_dir = Path(built["engines"][0]["path"])
    engine = next(iter(deployment.model.engines.values()))
    embedder = next(service for service in deployment.model.services.values() if service.runtime == "flash")
    recipe = load.recipe(load.resolve(options.config, engine.recipe))
    return Asked(
        config=options.config,
        engine_dir=engine_dir,
        model=load.resolve(recipe.file, recipe.model.model or Path()),
        embedding_model=load.resolve(options.config, embedder.model or Path()),
        dtype=json.loads((engine_dir / "engine.json").read_text())["dtype"],
        service_urls=tuple(f"http://127.0.0.1:{service.port}" for service in deployment.model.services.values()),
        rounds=options.rounds,
        boots=options.boots,
        tokens=options.tokens,
        threads=options.threads,
        log=options.log,
        transformers=options.transformers,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--boots", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--log", type=Path, default=Path("/tmp/measure_servers.log"))  # noqa: S108
    parser.add_argument(
        "--transformers", type=Path, default=BIN / "transformers", help="needs transformers[serving] and accelerate"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are stopped on the way out
    asked = read(options)
    numbers = {}
    for name in options.parts:
        measure, show = PARTS[name]
        numbers[name] = asyncio.run(measure(asked))
        show(numbers[name])
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
