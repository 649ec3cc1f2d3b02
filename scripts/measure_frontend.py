"""The built-in frontend beside sentence-transformers: texts per second at several numbers of clients, one run.

    python scripts/measure_frontend.py models/all-minilm-l6-v2 --threads 2 --rounds 5

Both have the same model folder, float32, torch threads, OpenMP settings, and texts, one text a request. Ours runs as
users have it: a server process, asked over HTTP by as many connections as there are clients, its answers as base64
(what the official client asks for). sentence-transformers runs inside this process, each client a thread that calls
``encode`` for its text: no server, no HTTP and no JSON are charged to it, so the ratio is a lower bound of what a
user of a server around it would see. ``batch`` is its ``encode`` over all texts at once, which no server that is
asked text by text can have: an upper bound. Every round runs each of them in turn; told are medians over rounds, and
the median of the rounds' ratios. Processor time a text is told beside it: other programs of the machine change it less.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = (1, 8, 64)
TEXTS = 256
# Words of everyday length; a text has 3 to 120 of them, most about 20.
TEXT = (
    "the of and to in is that for it was on with as by at from this have market river engine answer "
    "copper a not are but had which one you were all her she there would their we him been has when who "
    "will more no if out so what "
)
TOKEN = "measure"  # noqa: S105 - of a server that lives for this run


def texts(count: int, seed: int) -> list[str]:
    """Texts of mixed length, none twice."""
    words = TEXT.split()
    chosen = random.Random(seed)  # noqa: S311 - texts, no secrets
    lengths = [min(120, max(3, round(chosen.lognormvariate(3.0, 0.7)))) for _ in range(count)]
    return [f"{n} " + " ".join(chosen.choices(words, k=length)) for n, length in enumerate(lengths)]


@contextlib.contextmanager
def frontend(model_dir: Path, threads: int) -> Iterator[tuple[int, psutil.Process]]:
    """The port and process of our server, warmed and registered."""
    argv = [sys.executable, str(ROOT / "toolkit/serve/run.py"), "frontend", "--model-dir", str(model_dir)]
    environment = {**os.environ, "COEXIST_TOKEN": TOKEN, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        [*argv, "--port", "0", "--device", "cpu"], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        yield _started(process), psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def _started(process: subprocess.Popen[str]) -> int:
    port = 0
    for line in process.stderr or ():
        found = re.search(r"listening on .*:(\d+)", line)
        port = int(found[1]) if found else port
        if "preload -> loaded" in line:
            break
    for path in ("/v1/warmup", "/v1/register"):
        asyncio.run(_one(port, _request(path, {})))
    return port


def _request(path: str, body: Any) -> bytes:
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Coexist-Token: {TOKEN}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


async def _one(port: int, request: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _exchange(reader, writer, request)
    writer.close()


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        raise RuntimeError(body.decode())


def ask_frontend(port: int, clients: int, given: Sequence[str]) -> None:
    """Nothing, once every text was answered; each client has one connection and one request under way."""
    waiting = [_request("/v1/embeddings", {"input": text, "encoding_format": "base64"}) for text in reversed(given)]

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while waiting:
            await _exchange(reader, writer, waiting.pop())
        writer.close()

    async def main() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    asyncio.run(main())


def sentence_transformer(model_dir: Path, threads: int) -> Any:
    """The model as sentence-transformers loads it, warmed."""
    import torch  # takes seconds
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(model_dir), device="cpu")
    model.encode(texts(64, 1), show_progress_bar=False)
    return model


def ask_threads(model: Any, clients: int, given: Sequence[str]) -> None:
    """Nothing, once every text was encoded; each client is a thread with one call under way."""
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda text: model.encode([text], show_progress_bar=False), given))


@dataclass(frozen=True)
class Rate:
    """What one side did in one round."""

    texts_per_s: float
    cpu_ms: float


def rate(run: Callable[[], None], count: int, process: psutil.Process) -> Rate:
    """Of ``count`` texts, and the processor time of ``process`` for each."""
    began_s, before = time.monotonic(), process.cpu_times()
    run()
    after = process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    return Rate(count / (time.monotonic() - began_s), cpu_s / count * 1e3)


def measure(model_dir: Path, threads: int, rounds: int, count: int) -> dict[str, Any]:
    """For each number of clients: both rates of every round, and the median of their ratios."""
    # As coexist sets it for its services: threads that spin at a barrier measure the other programs of the machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    model = sentence_transformer(model_dir, threads)
    rates: dict[str, list[tuple[Rate, Rate]]] = {str(n): [] for n in CLIENTS}
    batch: list[Rate] = []
    here = psutil.Process()
    with frontend(model_dir, threads) as (port, server):
        for number in range(rounds):
            given = texts(count, 100 + number)
            for clients in CLIENTS:
                ours = rate(partial(ask_frontend, port, clients, given), count, server)
                theirs = rate(partial(ask_threads, model, clients, given), count, here)
                rates[str(clients)].append((ours, theirs))
            batch.append(rate(partial(model.encode, given, show_progress_bar=False), count, here))
    return {
        "threads": threads,
        "texts": count,
        "rounds": rounds,
        "clients": {name: summary(pairs) for name, pairs in rates.items()},
        "sentence_transformers_batch_texts_per_s": statistics.median(one.texts_per_s for one in batch),
        "sentence_transformers_batch_cpu_ms": statistics.median(one.cpu_ms for one in batch),
    }


def summary(pairs: Sequence[tuple[Rate, Rate]]) -> dict[str, float]:
    ratios = [ours.texts_per_s / theirs.texts_per_s for ours, theirs in pairs]
    median = statistics.median
    return {
        "frontend_texts_per_s": median(ours.texts_per_s for ours, _ in pairs),
        "sentence_transformers_texts_per_s": median(theirs.texts_per_s for _, theirs in pairs),
        "ratio": median(ratios),
        "ratio_worst": min(ratios),
        "frontend_cpu_ms": median(ours.cpu_ms for ours, _ in pairs),
        "sentence_transformers_cpu_ms": median(theirs.cpu_ms for _, theirs in pairs),
    }


def show(numbers: dict[str, Any]) -> None:
    print(f"{numbers['threads']} threads, {numbers['texts']} texts, medians of {numbers['rounds']} rounds")
    print("         texts a second                                   processor ms a text")
    print("clients  frontend  sentence-transformers  ratio  (worst)  frontend  sentence-transformers")
    for clients, row in numbers["clients"].items():
        ours, theirs = row["frontend_texts_per_s"], row["sentence_transformers_texts_per_s"]
        print(
            f"{clients:>7}  {ours:>8.0f}  {theirs:>21.0f}  {row['ratio']:>5.2f}  ({row['ratio_worst']:>5.2f})", end="  "
        )
        print(f"{row['frontend_cpu_ms']:>8.2f}  {row['sentence_transformers_cpu_ms']:>21.2f}")
    name = "sentence_transformers_batch"
    print(f"  batch  {numbers[f'{name}_texts_per_s']:>31.0f}  {numbers[f'{name}_cpu_ms']:>47.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    asked = parser.parse_args()
    numbers = measure(asked.model_dir, asked.threads, asked.rounds, asked.texts)
    show(numbers)
    if asked.json:
        asked.json.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
