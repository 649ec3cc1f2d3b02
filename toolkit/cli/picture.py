"""What ``up`` and ``status`` draw, from the status document alone."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from toolkit.errors import ToolkitError
from toolkit.units import format_duration
from toolkit.warm import Progress

STAGES = ("INIT", "PRELOAD", "PRIME", "SERVING")
STYLES = {
    "INIT": "grey50", "PRELOAD": "blue", "PRIME": "yellow", "SERVING": "green",
    "DRAINING": "magenta", "BACKOFF": "red", "STOPPED": "grey50", "FAILED": "bold red",
}  # fmt: skip
OVERVIEW = ("service", "state", "port", "pid", "restarts", "cpus", "threads on plan", "gpus", "first/p50 ms")
BAR_WIDTH, TIMELINE_WIDTH, ANSWER_WIDTH = 20, 50, 40
BLOCK = "█"


def live(status: Mapping[str, Any], progress: Mapping[str, Progress | None], activity: Mapping[str, str]) -> Table:
    """One row per service: stage, a bar, what it does now."""
    table = Table(box=None, pad_edge=False)
    for heading in ("service", "stage", "", "now"):
        table.add_column(heading, header_style="bold", no_wrap=heading != "now")
    for service in status["services"]:
        name, state = service["name"], service["state"]
        bar = _bar(state, stages_done(state, progress.get(name)))
        table.add_row(name, Text(state, STYLES[state]), bar, _now(service, activity.get(name, "")))
    return table


def _bar(state: str, done: float) -> ProgressBar:
    style = STYLES["SERVING"] if state == "SERVING" else STYLES["PRIME"]
    return ProgressBar(len(STAGES) - 1, done, width=BAR_WIDTH, complete_style=style, finished_style=style)


def stages_done(state: str, progress: Progress | None) -> float:
    """How many of the three stages before SERVING are done; the one at hand counts in part."""
    if state not in STAGES:
        return 0.0
    part = 0.0
    if progress is not None and progress.stage == state and progress.total:
        part = min(1.0, progress.done / progress.total)
    return min(STAGES.index(state) + part * 0.99, len(STAGES) - 1.0)


def _now(service: Mapping[str, Any], activity: str) -> str:
    failure = service["last_failure"]
    ended = service["state"] in ("FAILED", "BACKOFF") and failure
    return str(failure["summary"]) if ended else activity


def timeline(status: Mapping[str, Any]) -> Table:
    """The start of every service as bars on one time axis."""
    longest = max((_boot_seconds(s) for s in status["services"]), default=0.0) or 1.0
    table = Table(box=None, pad_edge=False)
    for heading in ("service", f"start, 0 to {format_duration(longest)}", "ready after"):
        table.add_column(heading, header_style="bold", no_wrap=True)
    for service in status["services"]:
        table.add_row(service["name"], _stage_bar(service, longest), format_duration(_boot_seconds(service)))
    table.caption = Text("  ").join(Text(f"{BLOCK} {name}", STYLES[name]) for name in STAGES[:3])
    table.caption_justify = "left"
    return table


def _stage_bar(service: Mapping[str, Any], longest: float) -> Text:
    """Stages end where their time ends, so that bars of different services can be compared."""
    bar, passed = Text(), 0.0
    for stage in _boot_stages(service):
        drawn, passed = round(passed / longest * TIMELINE_WIDTH), passed + stage["seconds"]
        bar.append(BLOCK * (round(passed / longest * TIMELINE_WIDTH) - drawn), STYLES[stage["state"]])
    return bar


def _boot_stages(service: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [s for s in service["stages"] if s["state"] in STAGES[:3] and s["seconds"] is not None]


def _boot_seconds(service: Mapping[str, Any]) -> float:
    return float(sum(stage["seconds"] for stage in _boot_stages(service)))


def parts(status: Mapping[str, Any]) -> Table:
    """What the time of a start went into: a row for each part, a column for each service that tells of any."""
    told = {name: times for name, times in ((s["name"], _parts(s)) for s in status["services"]) if times}
    table = Table(box=None, pad_edge=False)
    table.add_column("part", header_style="bold")
    for name in told:
        table.add_column(name, header_style="bold", justify="right")
    for part in dict.fromkeys(part for times in told.values() for part in times):
        cells = (format_duration(times[part]) if part in times else "-" for times in told.values())
        table.add_row(part.replace("_", " "), *cells)
    return table


def _parts(service: Mapping[str, Any]) -> dict[str, float]:
    return {name: s for stage in service["stages"] for name, s in stage["parts"].items() if s is not None}


def first_tokens(status: Mapping[str, Any]) -> Table:
    """First request after READY beside steady ones of the same length, and the canary's answer."""
    table = Table(box=None, pad_edge=False)
    for heading in ("service", "first request", "steady p50", "p99", "first/p50", "canary"):
        table.add_column(heading, header_style="bold", justify="left" if heading in ("service", "canary") else "right")
    for service in status["services"]:
        times, canary = service["first_token_ms"], service["canary"]
        measured = (_ms(times[key]) for key in ("first", "p50", "p99"))
        table.add_row(service["name"], *measured, _ratio(times), _canary(canary))
    return table


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _ratio(times: Mapping[str, float | None]) -> str:
    first, p50 = times["first"], times["p50"]
    return "-" if not first or not p50 else f"{first / p50:.2f}x"


def _canary(canary: Mapping[str, Any]) -> str:
    if canary["ok"] is None:
        return "-"
    got = " ".join(str(canary["got"]).split())
    return (
        f"right: {textwrap.shorten(got, ANSWER_WIDTH, placeholder=' …')}"
        if canary["ok"]
        else f"WRONG: wanted {canary['expected']!r}, got {got!r}"
    )


def start(status: Mapping[str, Any]) -> str:
    """What a deployment without a supervisor is at."""
    step = status["starting"]
    took = format_duration(step["seconds"])
    return f"{status['deployment']} is starting (pid {step['pid']}): {step['text']} for {took}"


def deployments(found: Sequence[tuple[str, Mapping[str, Any] | ToolkitError]]) -> Table:
    """Several deployments by name, a line each; of one that cannot be asked, why."""
    table = Table(box=None, pad_edge=False)
    for heading in ("deployment", "ready", "services", "control API"):
        table.add_column(heading, header_style="bold", overflow="fold")
    for name, status in found:
        if isinstance(status, ToolkitError):
            table.add_row(name, Text("?", "red"), status.what, "-")
        elif status["starting"]:
            table.add_row(name, "no", f"starting: {status['starting']['text']}", "-")
        else:
            ready = Text("yes", STYLES["SERVING"]) if status["ready"] else Text("no", STYLES["PRIME"])
            table.add_row(name, ready, _states(status), status["control"] or "-")
    return table


def _states(status: Mapping[str, Any]) -> str:
    counts = Counter(service["state"] for service in status["services"])
    return ", ".join(f"{counts[state]} {state}" for state in STYLES if counts[state])


def overview(status: Mapping[str, Any]) -> Table:
    """The table of ``coexist status``."""
    table = Table(box=None, pad_edge=False)
    for heading in OVERVIEW:
        table.add_column(heading, header_style="bold", overflow="fold")
    for service in status["services"]:
        times = service["first_token_ms"]
        table.add_row(
            service["name"], Text(service["state"], STYLES[service["state"]]), str(service["port"]),
            str(service["pid"] or "-"), str(service["restarts"]), service["cpus"] or "-", _on_plan(service),
            _gpus(service["gpus"]), f"{_number(times['first'])} / {_number(times['p50'])}",
        )  # fmt: skip
    return table


def remarks(status: Mapping[str, Any]) -> Text:
    """Where the control API listens, what starts do, last failures, late compiles, what is off plan; a line each."""
    lines = Text(f"control API: {status['control']}\n" if status["control"] else "")
    for service in status["services"]:
        failure, placement = service["last_failure"], service.get("placement")
        if activity := service.get("activity"):
            lines.append(f"{service['name']}: {service['state']}: {activity}\n")
        if failure:
            when = f"attempt {failure['attempt']}, {failure['at']}"
            lines.append(f"{service['name']}: last failure ({when}): {failure['summary']}\n", "red")
        if late := service.get("late_compiled"):
            lines.append(f"{service['name']}: {_compiled_late(service['late_compiles'], late[-1])}\n", "yellow")
        for text in placement["drift"] if placement else ():
            lines.append(f"{service['name']}: {text}\n", "yellow")
    lines.rstrip()
    return lines


def _compiled_late(count: int, last: Mapping[str, Any]) -> str:
    key = f" ({last['key']})" if last["key"] else ""
    return f"compiled after READY, {count} in all; the last seen by {last['channel']}{key}"


def _on_plan(service: Mapping[str, Any]) -> str:
    """Threads held to the planned CPUs."""
    found = service.get("placement")
    if not found or found["on_plan_percent"] is None:
        return "-"
    return f"{found['on_plan_percent']:.0f}% of {found['threads']}"


def _gpus(gpus: list[Mapping[str, Any]]) -> str:
    return ",".join(str(gpu["index"]) for gpu in gpus) or "-"
