"""The command group. Commands are imported when they are called, so that ``coexist --help`` answers at once."""

from __future__ import annotations

from importlib import import_module

import click

from toolkit import __version__
from toolkit.names import nearest

COMMANDS = {
    "init": ("toolkit.cli.files", "Write a first deployment for this host."),
    "host": ("toolkit.cli.machine", "Show what this machine is: GPUs, memory, links, NUMA nodes, CPUs."),
    "check": ("toolkit.cli.check", "Say whether these can live together, how close, and what to change."),
    "plan": ("toolkit.cli.deploy", "Show who gets what. Changes nothing."),
    "build": ("toolkit.cli.engines", "Make or reuse engines."),
    "engines": ("toolkit.cli.engines", "List, verify, adopt or prune the engine store."),
    "up": ("toolkit.cli.deploy", "Plan, build, launch, warm and register a deployment."),
    "status": ("toolkit.cli.running", "Show the running deployment."),
    "logs": ("toolkit.cli.running", "Show what services wrote."),
    "restart": ("toolkit.cli.running", "Restart one service."),
    "stop": ("toolkit.cli.running", "Stop one service."),
    "down": ("toolkit.cli.running", "Drain and stop the whole deployment."),
    "diagnose": ("toolkit.cli.diagnose", "Say why a start failed or stalls."),
    "bench": ("toolkit.cli.bench", "Measure what a start costs, against a target."),
    "schema": ("toolkit.cli.files", "Print the JSON Schema of a file, for editors."),
    "completion": ("toolkit.cli.files", "Print the shell completion script."),
}


class Lazy(click.Group):
    """Loads a command's module on first use and suggests the nearest name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = nearest(name, COMMANDS)
            raise click.UsageError(f"no command '{name}'" + (f"; did you mean '{near}'?" if near else ""), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="coexist")
def root() -> None:
    """Run unlike GPU servers side by side on one node: check, build, up.

    \b
    coexist init deploy.yaml     write a first deployment
    coexist plan deploy.yaml     who gets which GPUs, memory, cores and ports
    coexist up deploy.yaml       build, start, warm; ready only when proven
    """
