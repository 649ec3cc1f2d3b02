"""``bench``: what a start costs, and whether it meets the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from toolkit.bench import picture
from toolkit.bench.cold_start import cold_start
from toolkit.cli import heartbeat, output
from toolkit.cli.deploy import duration
from toolkit.cli.options import config_argument, json_option
from toolkit.files import writable_file, write_atomic
from toolkit.home import Home
from toolkit.units import format_duration

NOT_MET = 1


@click.group("bench")
def bench_command() -> None:
    """Measure a deployment.

    \b
    coexist bench cold-start configs/quickstart.yaml --runs 20
    """


@bench_command.command("cold-start", short_help="Boot it again and again, and measure.")
@config_argument
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, metavar="N",
              help="Boots with the whole warm-up.")  # fmt: skip
@click.option("--warmup", type=click.Choice(["none", "single", "full"]), help="Only this mode, nothing beside it.")
@click.option("--timeout", callback=duration, metavar="S", help="Each boot must be ready in this time (such as 90s).")
@click.option("--load", callback=duration, default="4s", show_default=True, metavar="S",
              help="How long each service is loaded.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Begin anew where an interrupted run would be taken up.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw timeline and first tokens as SVG.")
@json_option
def cold_start_command(
    config: Path,
    *,
    runs: int,
    warmup: Any,
    timeout: float | None,
    load: float,
    fresh: bool,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Boot it again and again: with empty caches, with filled ones, and with less warm-up. It stops by itself.

    Exit 0 when the target is met, 1 when it isn't. Interrupted, the next call goes on where it was.

    \b
    coexist bench cold-start configs/quickstart.yaml
    coexist bench cold-start deploy.yaml --runs 100 --json --plot boot.svg
    """
    doing = heartbeat.Doing()

    def say(text: str) -> None:
        output.say(text)
        doing.begin(text)

    def show(document: dict[str, Any]) -> None:
        if plot is not None:
            write_atomic(plot, picture.svg(document), mode=0o644)
        if as_json:
            output.document(document)
        else:
            _show(document)

    if plot is not None:
        writable_file(plot, "the picture")
    with heartbeat.beating(doing.text):
        document = cold_start(
            config, Home.find(), runs=runs, warmup=warmup, fresh=fresh, timeout_s=timeout, load_s=load, say=say,
            show=show, at=doing.at,
        )  # fmt: skip
    return 0 if document["pass"] else NOT_MET


def _show(document: dict[str, Any]) -> None:
    console = output.console()
    for table in (_starts(document), _first_tokens(document), _loads(document), _rows(document), _targets(document)):
        if table.row_count:
            console.print(table)
            console.print()
    for note in document["notes"]:
        console.print(Text(f"note: {note}"))


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, header_style="bold")
    return table


def _starts(document: dict[str, Any]) -> Table:
    table = _table("start", "condition", "boots", "service", "INIT", "PRELOAD", "PRIME", "parts of PRELOAD")
    for condition in document["conditions"]:
        for service in condition["services"]:
            stages = (_duration(service["stages"].get(state)) for state in ("INIT", "PRELOAD", "PRIME"))
            parts = ", ".join(f"{name} {_duration(s)}" for name, s in service["parts"].items() if s is not None)
            table.add_row(condition["name"], str(condition["boots"]), service["name"], *stages, parts or "-")
    return table


def _first_tokens(document: dict[str, Any]) -> Table:
    headings = ("condition", "service", "first", "P50", "P90", "P99", "steady", "first/steady")
    table = _table("first token after READY (ms)", *headings)
    for condition in document["conditions"]:
        for service in condition["services"]:
            times = service["first_token_ms"]
            cells = (_number(times[key]) for key in ("first", "p50", "p90", "p99"))
            ratio = _number(service["first_over_steady"], 2)
            table.add_row(condition["name"], service["name"], *cells, _number(service["steady_ms"]), ratio)
    return table


def _loads(document: dict[str, Any]) -> Table:
    table = _table("load and memory", "condition", "service", "rate", "to 80%", "RSS")
    for condition in document["conditions"]:
        for service in condition["services"]:
            load = service["load"]
            rate = f"{_number(load['per_s'])} {load['unit']}/s" if load else "-"
            climb = _duration(load["to_80_percent_s"] if load else None)
            held = f"{service['resident_mib']:.1f} MiB" if service["resident_mib"] else "-"
            table.add_row(condition["name"], service["name"], rate, climb, held)
    return table


def _rows(document: dict[str, Any]) -> Table:
    table = _table("without warm-up", "warm-up", "service", "first P50 (ms)", "worst", "steady", "first/steady")
    for row in document["without_warmup"]:
        numbers = (_number(row[key]) for key in ("first_p50_ms", "first_worst_ms", "steady_ms"))
        table.add_row(row["warmup"], row["service"], *numbers, _number(row["first_over_steady"], 2))
    return table


def _targets(document: dict[str, Any]) -> Table:
    table = _table("target", "what", "service", "measured", "at most", "")
    for target in document["targets"]:
        verdict = {True: Text("met", "green"), False: Text("NOT MET", "bold red"), None: Text("not judged", "grey50")}
        what = target["id"].removesuffix("_ms").removesuffix("_s").replace("_", " ")
        measured, most = (_amount(target["id"], target[key]) for key in ("measured", "at_most"))
        table.add_row(what, target["service"], measured, most, verdict[target["pass"]])
    return table


def _amount(of: str, value: float | None) -> str:
    """The value with the unit that the target's id implies."""
    if value is None:
        return "-"
    if of.endswith("_ms"):
        return f"{value:.1f} ms"
    if of.endswith("_s"):
        return f"{value:.2f} s"
    if of == "resident_jitter":
        return f"{value:.2%}"
    return f"{value:.3f}" if of == "first_over_steady" else f"{value:.0f}"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(seconds)
