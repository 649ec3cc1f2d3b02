"""Commands that start from a deployment file: plan, up."""

from __future__ import annotations

from pathlib import Path

import click

from toolkit import workflow
from toolkit.cli import live, output, tables
from toolkit.cli.options import config_argument, host_option, json_option
from toolkit.errors import UsageError
from toolkit.home import Home
from toolkit.units import parse_duration_s


def duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Seconds of an option such as 90s or 90."""
    try:
        return None if value is None else float(value) if value.isdecimal() else parse_duration_s(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command("plan")
@config_argument
@host_option
@json_option
def plan_command(config: Path, host_file: Path | None, as_json: bool) -> None:
    """Show who gets what: GPUs, memory, cores, NUMA nodes, ports, order, command lines. Changes nothing.

    \b
    coexist plan configs/quickstart.yaml
    coexist plan deploy.yaml --host node7.json --json
    """
    document = workflow.plan_document(config, Home.find(), host_file)
    if as_json:
        output.document(document)
    else:
        output.console().print(tables.plan(document))


@click.command("up")
@config_argument
@click.option("--detach", is_flag=True, help="Leave it running and return when it is ready.")
@click.option("--exit-when-ready", is_flag=True, help="When all are ready: print the status, stop everything, exit 0.")
@click.option("--timeout", callback=duration, metavar="S", help="Not ready in this time: stop, exit 4 (such as 90s).")
@json_option
def up_command(config: Path, detach: bool, exit_when_ready: bool, timeout: float | None, as_json: bool) -> int:
    """Plan, build, launch, warm and register. In the foreground until Ctrl-C, which drains and stops everything.

    On a deployment that runs already: show what is different, and restart only that. What serves although its
    coexist was killed (on_supervisor_death: keep) is taken over.

    \b
    coexist up configs/quickstart.yaml
    coexist up configs/quickstart.yaml --exit-when-ready --json
    """
    if detach and exit_when_ready:
        raise UsageError("--detach leaves it running, --exit-when-ready stops it: give one of them", code="usage")
    if detach:
        return live.detach(config, timeout, as_json)
    return live.up(config, exit_when_ready, timeout, as_json)
