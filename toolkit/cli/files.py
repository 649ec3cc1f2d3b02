"""Commands about files a person writes: init, schema, completion."""

from __future__ import annotations

import json
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from toolkit import workflow
from toolkit.cli import output
from toolkit.cli.options import json_option
from toolkit.config import schema

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("init")
@click.argument("file", type=click.Path(readable=False, path_type=Path), default=Path("coexist.yaml"))
@json_option
def init_command(file: Path, as_json: bool) -> None:
    """Write a first deployment for this host, with comments, and say what it still misses. Never overwrites.

    FILE is coexist.yaml if left out.

    \b
    coexist init configs/mine.yaml
    """
    missing = workflow.init(file)
    if as_json:
        told = [{"what": each.what, "where": each.where, "hint": each.hint} for each in missing]
        output.document({"file": str(file), "missing": told})
        return
    output.line(f"wrote {file}")
    if missing:
        output.say("It names what is not in place yet. Put it there, or name what you have:")
    for each in missing:
        output.say(f"  {each.where}: {each.what}")
    output.say(f"Then: coexist plan {file}" if missing else f"Edit it, then: coexist plan {file}")


@click.command("schema")
@click.argument("kind", type=click.Choice(["deployment", "recipe", "host"]))
@json_option
def schema_command(kind: str, as_json: bool) -> None:
    """Print the JSON Schema of a file, for editors.

    \b
    coexist schema deployment > deployment.schema.json
    """
    found = schema.document(kind)
    if as_json:
        output.document({"kind": kind, "document": found})
    else:
        output.line(json.dumps(found, indent=2))


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@json_option
def completion_command(shell: str, as_json: bool) -> None:
    """Print the shell completion script.

    \b
    eval "$(coexist completion bash)"
    """
    program = click.get_current_context().find_root().command
    script = _SHELLS[shell](program, {}, "coexist", "_COEXIST_COMPLETE").source()
    if as_json:
        output.document({"shell": shell, "script": script})
    else:
        output.line(script)
