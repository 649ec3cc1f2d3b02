"""Two drawings of a bench as one SVG that stands alone: the start of each service, and its first-token times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

WIDTH, MARGIN, ROW, CURVE = 760, 150, 34, 150
COLOURS = {"INIT": "#9aa0a6", "PRELOAD": "#4285f4", "PRIME": "#f9ab00"}
LINES = ("#1a73e8", "#d93025", "#188038", "#9334e6", "#e37400", "#00838f")
FONT = "font-family='sans-serif' font-size='12' fill='#202124'"


def svg(document: Mapping[str, Any]) -> str:
    """The drawing of a bench's document."""
    bars = [(f"{c['name']}: {s['name']}", s["stages"]) for c in document["conditions"] for s in c["services"]]
    curves = [
        (f"{c['name']}: {s['name']}", s["proof_ms"])
        for c in document["conditions"] if c["name"] in ("cold", "full")
        for s in c["services"] if len(s["proof_ms"]) > 1
    ]  # fmt: skip
    top = 60 + ROW * len(bars)
    height = top + (CURVE + 70 + 18 * len(curves) if curves else 10)
    body = [_title(document), *_timeline(bars), *(_curves(curves, top) if curves else ())]
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}'>"
    return "\n".join([head, f"<rect width='{WIDTH}' height='{height}' fill='white'/>", *body, "</svg>", ""])


def _title(document: Mapping[str, Any]) -> str:
    return _text(10, 20, f"Cold start of {document['deployment']}: from start to ready, median of each condition", True)


def _timeline(bars: Sequence[tuple[str, Mapping[str, float]]]) -> Iterator[str]:
    longest = max((sum(stages.values()) for _, stages in bars), default=0.0) or 1.0
    scale = (WIDTH - MARGIN - 80) / longest
    for number, (name, stages) in enumerate(bars):
        y, at = 34 + ROW * number, float(MARGIN)
        yield _text(10, y + 16, name)
        for state, seconds in stages.items():
            wide = seconds * scale
            colour = COLOURS.get(state, "#5f6368")
            box = f"x='{at:.1f}' y='{y}' width='{wide:.1f}' height='22' fill='{colour}'"
            yield f"<rect {box}><title>{state} {seconds:.2f} s</title></rect>"
            at += wide
        yield _text(at + 6, y + 16, f"{sum(stages.values()):.2f} s")
    yield from _legend(34 + ROW * len(bars) + 10)


def _legend(y: int) -> Iterator[str]:
    for number, (state, colour) in enumerate(COLOURS.items()):
        x = MARGIN + 110 * number
        yield f"<rect x='{x}' y='{y - 10}' width='12' height='12' fill='{colour}'/>"
        yield _text(x + 18, y, state)


def _curves(curves: Sequence[tuple[str, Sequence[float]]], top: int) -> Iterator[str]:
    """First-token times in the order of the proof's probes, on one linear scale from zero."""
    highest = max(max(times) for _, times in curves) or 1.0
    longest = max(len(times) for _, times in curves)
    bottom, wide = top + 30 + CURVE, WIDTH - MARGIN - 80
    yield _text(10, top + 18, "First-token times during the proof (ms), in order", True)
    yield f"<path d='M{MARGIN} {top + 30}V{bottom}H{MARGIN + wide}' fill='none' stroke='#9aa0a6'/>"
    yield _text(MARGIN - 60, top + 40, f"{highest:.0f} ms")
    yield _text(MARGIN - 14, bottom, "0")
    for number, (name, times) in enumerate(curves):
        points = " ".join(
            f"{MARGIN + wide * at / max(1, longest - 1):.1f},{bottom - CURVE * ms / highest:.1f}"
            for at, ms in enumerate(times)
        )
        colour = LINES[number % len(LINES)]
        yield f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'/>"
        y = bottom + 24 + 18 * number
        yield f"<rect x='{MARGIN}' y='{y - 9}' width='12' height='4' fill='{colour}'/>"
        yield _text(MARGIN + 18, y, f"{name}: first {times[0]:.1f} ms, last {times[-1]:.1f} ms")


def _text(x: float, y: float, text: str, bold: bool = False) -> str:
    weight = " font-weight='bold'" if bold else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' {FONT}{weight}>{escape(text)}</text>"
