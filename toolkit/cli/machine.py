"""The command about this machine: host, host parse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from toolkit import workflow
from toolkit.cli import output
from toolkit.cli.host_drawing import draw
from toolkit.cli.options import json_option
from toolkit.errors import ToolkitError
from toolkit.host import record as records
from toolkit.host import topology


@click.group("host", invoke_without_command=True)
@click.option("--record", type=click.Path(path_type=Path), metavar="FILE", help="Save the machine for plans elsewhere.")
@json_option
@click.pass_context
def host_command(context: click.Context, record: Path | None, as_json: bool) -> None:
    """Show what this machine is: GPUs, MIG, memory, links, NUMA nodes, allowed CPUs, limits of the container.

    \b
    coexist host
    coexist host --record node7.json     then elsewhere: coexist plan deploy.yaml --host node7.json
    """
    if context.invoked_subcommand:
        return
    host = workflow.this_host()
    if record is not None:
        records.save(host, record)
        output.say(f"wrote {record}")
    if as_json:
        output.document(records.document(host))
    else:
        output.console().print(draw(host))


@host_command.command("parse", short_help="Read a text of nvidia-smi.")
@click.argument("file", type=click.Path(readable=False, path_type=Path))
@json_option
def parse_command(file: Path, as_json: bool) -> None:
    """Read a text of 'nvidia-smi topo -m', 'nvidia-smi -L' or 'nvidia-smi --query-gpu=… --format=csv'.

    \b
    nvidia-smi topo -m | coexist host parse - --json
    """
    facts = topology.parse(_read(file))
    if as_json:
        output.document(facts)
    else:
        output.line(json.dumps(facts, indent=2, ensure_ascii=False))


def _read(file: Path) -> str:
    if str(file) == "-":
        return topology.decoded(sys.stdin.buffer.read())
    try:
        return topology.decoded(file.read_bytes())
    except OSError as error:
        raise ToolkitError(f"cannot read it: {error.strerror}", str(file), "Give a text file, or '-'.") from error
