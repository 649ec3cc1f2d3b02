#!/usr/bin/env python3
"""Draws first-token times over boots as one SVG that stands alone: probes of the proof, and what users meet without it.

coexist up configs/quickstart.yaml --exit-when-ready --json > up.json
python scripts/measure_warmup.py --boots 1 --json warmup.json
python scripts/draw_boot.py up.json warmup.json docs/warmup.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from toolkit.warm.steady import WINDOW

WIDTH, LEFT, RIGHT, TOP, HEIGHT = 760, 64, 20, 46, 250
LOWEST_MS, HIGHEST_MS = 3.0, 30_000.0
SHOWN = 40  # of a long proof, the last ones
COLOURS = ("#d93025", "#e37400", "#1a73e8", "#188038")
FONT = "font-family='sans-serif' font-size='12' fill='#202124'"


@dataclass(frozen=True)
class Series:
    """First-token times in the order of requests; ``proven``: the last of them are the window that proved it."""

    name: str
    times_ms: Sequence[float]
    proven: bool


def main() -> None:
    up, warmup = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    series = [Series("transformers serve, asked as soon as /health is 200", warmup["bare"][0]["first_token_ms"], False)]
    series.append(Series("transformers serve: probes before READY", warmup["boots"][0]["proof_ms"], True))
    series += [
        Series(f"quickstart, {service['name']}: probes before READY", service["proof"]["first_token_ms"], True)
        for service in up["services"]
    ]
    Path(sys.argv[3]).write_text(svg(series))


def svg(series: Sequence[Series]) -> str:
    tall = TOP + HEIGHT + 44 + 18 * len(series)
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {tall}' width='{WIDTH}' height='{tall}'>"
    longest = max(len(each.times_ms[-SHOWN:]) for each in series)
    body = [text(10, 22, "Time to the first token, request after request (ms, logarithmic)", bold=True), *axis(longest)]
    for number, each in enumerate(series):
        body += curve(each, COLOURS[number % len(COLOURS)], longest, TOP + HEIGHT + 40 + 18 * number)
    return "\n".join([head, f"<rect width='{WIDTH}' height='{tall}' fill='white'/>", *body, "</svg>", ""])


def axis(longest: int) -> Iterator[str]:
    for ms in (10, 100, 1000, 10_000):
        yield f"<path d='M{LEFT} {y_of(ms):.1f}H{WIDTH - RIGHT}' stroke='#e8eaed'/>"
        yield text(10, y_of(ms) + 4, f"{ms:,}")
    yield f"<path d='M{LEFT} {TOP}V{TOP + HEIGHT}H{WIDTH - RIGHT}' fill='none' stroke='#9aa0a6'/>"
    yield text(LEFT, TOP + HEIGHT + 16, "request 1")
    yield text(WIDTH - RIGHT - 70, TOP + HEIGHT + 16, f"request {longest}")


def curve(series: Series, colour: str, longest: int, legend_y: int) -> Iterator[str]:
    times = series.times_ms[-SHOWN:]
    points = [(x_of(at, longest), y_of(ms)) for at, ms in enumerate(times)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.5'/>"
    for at, (x, y) in enumerate(points):
        filled = series.proven and at >= len(points) - WINDOW
        yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour if filled else 'white'}' stroke='{colour}'/>"
    yield f"<rect x='{LEFT}' y='{legend_y - 8}' width='12' height='4' fill='{colour}'/>"
    cut = f" (the last {SHOWN} of {len(series.times_ms)})" if len(series.times_ms) > SHOWN else ""
    said = f"{series.name}: first {series.times_ms[0]:,.0f} ms, last {series.times_ms[-1]:,.0f} ms{cut}"
    yield text(LEFT + 18, legend_y, said)


def x_of(at: int, longest: int) -> float:
    return LEFT + 8 + (WIDTH - LEFT - RIGHT - 16) * at / max(1, longest - 1)


def y_of(ms: float) -> float:
    share = math.log(max(ms, LOWEST_MS) / LOWEST_MS) / math.log(HIGHEST_MS / LOWEST_MS)
    return TOP + HEIGHT * (1 - share)


def text(x: float, y: float, words: str, *, bold: bool = False) -> str:
    weight = " font-weight='bold'" if bold else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' {FONT}{weight}>{escape(words)}</text>"


if __name__ == "__main__":
    main()
