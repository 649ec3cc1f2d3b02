"""Measures how many megabytes of log a second the classifier reads, and the memory it takes.

Usage: python scripts/measure_diagnose.py [MEBIBYTES]

Three logs: the corpus over and over, the same with other numbers and words in every line, and one very long line.
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from toolkit.diagnose import classify
from toolkit.diagnose.catalogue import load

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "diagnose" / "logs"
CHUNK_BYTES = 1 << 18


def healthy_lines() -> list[bytes]:
    """Lines of the logs of healthy starts: what a server writes all day."""
    names = [f"log-{number:03}.log" for number in (2, 13, 39, 49, 68, 69, 84, 94)]
    return [line for name in names for line in (FOLDER / name).read_bytes().splitlines(keepends=True)]


def repeated(size_bytes: int) -> Iterator[bytes]:
    """Lines as servers repeat them: the same shapes, other numbers."""
    lines, made, turn = healthy_lines(), 0, random.Random(1)  # noqa: S311
    while made < size_bytes:
        chunk = b"".join(line.replace(b"0", b"%d" % turn.randrange(10)) for line in turn.choices(lines, k=2000))
        made += len(chunk)
        yield chunk


def novel(size_bytes: int) -> Iterator[bytes]:
    """No two lines alike: requests with texts and identifiers."""
    turn, made = random.Random(2), 0  # noqa: S311
    while made < size_bytes:
        words = [turn.randbytes(6).hex() for _ in range(12_000)]
        texts = (" ".join(words[at : at + 6]) for at in range(0, len(words), 6))
        rows = (b"INFO 01-02 03:04:05 [logger.py:40] " + text.encode() for text in texts)
        chunk = b"\n".join(rows) + b"\n"
        made += len(chunk)
        yield chunk


def errors(size_bytes: int) -> Iterator[bytes]:
    """Every line an error, and each another one."""
    turn, made = random.Random(3), 0  # noqa: S311
    while made < size_bytes:
        rows = (f"E0101 01:01:01.1 7 x.cc:1] request {turn.randbytes(8).hex()} failed: timeout" for _ in range(2000))
        chunk = "\n".join(rows).encode() + b"\n"
        made += len(chunk)
        yield chunk


def one_line(size_bytes: int) -> Iterator[bytes]:
    """One line without a line feed."""
    for _ in range(size_bytes // CHUNK_BYTES):
        yield b'{"weight_map": "model.layers.0.self_attn.q_proj.weight", ' * (CHUNK_BYTES // 58)


def main() -> None:
    size_bytes = int(sys.argv[1] if len(sys.argv) > 1 else 64) << 20
    began = time.perf_counter()
    load()
    print(f"patterns loaded in {(time.perf_counter() - began) * 1000:.0f} ms")
    for make in (repeated, novel, errors, one_line):
        chunks = list(make(min(size_bytes, 32 << 20)))
        total = sum(map(len, chunks))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        found = classify(chunks)
        seconds = time.perf_counter() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        print(f"{make.__name__:10} {total / 1e6 / seconds:8.1f} MB/s   {found.kind:10} +{grown} MiB")


if __name__ == "__main__":
    main()
