"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorated = Callable[..., Any]


def json_option(command: Decorated) -> Decorated:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")(command)


def host_option(command: Decorated) -> Decorated:
    return click.option(
        "--host", "host_file", type=click.Path(readable=False, path_type=Path), metavar="FILE",
        help="Use a host recorded with 'coexist host --record'; nothing of this machine is consulted.",
    )(command)  # fmt: skip


def deployment_option(command: Decorated) -> Decorated:
    return click.option(
        "--deployment", metavar="NAME", shell_complete=_deployments, help="Which deployment, when several run."
    )(command)


def config_argument(command: Decorated) -> Decorated:
    return click.argument("config", type=click.Path(readable=False, path_type=Path))(command)


def service_argument(required: bool) -> Callable[[Decorated], Decorated]:
    return click.argument("service", required=required, shell_complete=_services)


def _deployments(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from toolkit.supervise import client

    return [name for name in client.known_deployments() if name.startswith(incomplete)]


def _services(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from toolkit.supervise import client

    names = client.known_services(context.params.get("deployment"))
    return [name for name in names if name.startswith(incomplete)]


def engine_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Engines of the file on the command line; without one those in the store."""
    from toolkit.config import load
    from toolkit.errors import ToolkitError
    from toolkit.home import Home
    from toolkit.store import Store

    # While an option still lacks its value, click has parsed nothing: all words are left over.
    words = (context.params.get("file"), context.params.get("config"), *context.args)
    file = next((Path(word) for word in words if word and Path(word).is_file()), None)
    try:
        if file is None:
            names = [entry.name for entry in Store(Home.find().root).entries()]
        elif load.kind(file) == "recipe":
            names = [load.recipe(file).model.name]
        else:
            names = list(load.deployment(file).model.engines)
    except ToolkitError:
        return []
    return sorted({name for name in names if name.startswith(incomplete)})
