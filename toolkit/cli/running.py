"""Commands about a running deployment: status, logs, restart, stop, down."""

from __future__ import annotations

from typing import Any, Literal

import click

from toolkit.cli import output, picture, streams
from toolkit.cli.options import deployment_option, json_option, service_argument
from toolkit.errors import NotReadyInTimeError, ToolkitError
from toolkit.supervise import client
from toolkit.supervise.log_reader import Entry


@click.command("status")
@deployment_option
@click.option("--watch", is_flag=True, help="Show every change until Ctrl-C.")
@click.option("--exit-code", is_flag=True, help="Exit 4 while not all required services are ready; for probes.")
@json_option
def status_command(deployment: str | None, watch: bool, exit_code: bool, as_json: bool) -> None:
    """Show the running deployment: states, attempts, cores, first-token figures, last failures.

    Of one that still checks, plans or builds: at which step it is. Of several: a line each.

    \b
    coexist status
    coexist status --exit-code
    coexist status --watch --json | jq .ready
    """
    if watch and exit_code:
        raise click.UsageError("'--watch' never ends: it has no '--exit-code'")
    several = client.all_running() if deployment is None and not (watch or exit_code or as_json) else []
    if len(several) > 1:
        output.console().print(picture.deployments([_looked_at(each) for each in several]))
        output.say("'coexist status --deployment NAME' shows one of them")
        return
    running = client.find(deployment)
    if watch:
        streams.end_with_reader()
    documents = running.follow() if watch else [running.status()]
    for document in documents:
        if as_json:
            output.document(document)
        elif document["starting"]:
            output.line(picture.start(document), now=watch)
        else:
            output.console().print(picture.overview(document), picture.remarks(document))
        if exit_code and not document["ready"]:
            click.get_current_context().exit(NotReadyInTimeError.exit_code)


def _looked_at(running: client.Running) -> tuple[str, dict[str, Any] | ToolkitError]:
    """Its name and status, or why it tells none."""
    try:
        return running.deployment, running.status()
    except ToolkitError as error:
        return running.deployment, error


@click.command("logs")
@service_argument(required=False)
@deployment_option
@click.option("-f", "--follow", is_flag=True, help="Go on as lines are written.")
@click.option("--all", "all_runs", is_flag=True, help="Also lines of earlier runs, as far as they are kept.")
@click.option("-n", "--lines", "newest", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@json_option
def logs_command(  # noqa: PLR0917  one name per option
    service: str | None, deployment: str | None, follow: bool, all_runs: bool, newest: int | None, as_json: bool
) -> None:
    """Show what services wrote in this run, all of them or one, in order of time.

    \b
    coexist logs llm -f
    coexist logs -n 50
    """
    if follow:
        streams.end_with_reader()
    for entry in client.logs(deployment, service, follow=follow, all_runs=all_runs, newest=newest):
        if as_json:
            output.document({"service": entry.service, "rank": entry.rank, "at": entry.at, "line": entry.text})
        else:
            output.line(_log_line(entry, named=service is None), now=follow)


def _log_line(entry: Entry, named: bool) -> str:
    """The line, after the service where several are shown and the rank where one has a file of its own."""
    rank = None if entry.rank is None else f"rank {entry.rank}"
    source = " ".join(filter(None, (entry.service if named else None, rank)))
    return f"{source} | {entry.text}" if source else entry.text


@click.command("restart")
@service_argument(required=True)
@deployment_option
@json_option
def restart_command(service: str, deployment: str | None, as_json: bool) -> None:
    """Restart one service: drain, stop, start again.

    \b
    coexist restart embed
    """
    _act("restart", service, deployment, as_json)


@click.command("stop")
@service_argument(required=True)
@deployment_option
@json_option
def stop_command(service: str, deployment: str | None, as_json: bool) -> None:
    """Stop one service; the others go on.

    \b
    coexist stop embed
    """
    _act("stop", service, deployment, as_json)


@click.command("down")
@deployment_option
@json_option
def down_command(deployment: str | None, as_json: bool) -> None:
    """Drain and stop the whole deployment.

    \b
    coexist down
    """
    running = client.find(deployment)
    running.down()
    _done({"deployment": running.deployment, "action": "down"}, f"{running.deployment} is stopped", as_json)


def _act(action: Literal["restart", "stop"], service: str, deployment: str | None, as_json: bool) -> None:
    running = client.find(deployment)
    running.act(action, service)
    past = {"restart": "is restarting", "stop": "is stopped"}[action]
    document = {"deployment": running.deployment, "service": service, "action": action}
    _done(document, f"{service} {past}", as_json)


def _done(document: dict[str, str], text: str, as_json: bool) -> None:
    if as_json:
        output.document(document)
    else:
        output.line(text)
