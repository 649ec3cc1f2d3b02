"""Commands about engines: build, and the engine store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from toolkit import workflow
from toolkit.cli import heartbeat, output, tables
from toolkit.cli.options import engine_names, json_option
from toolkit.errors import ToolkitError
from toolkit.home import Home
from toolkit.store import Entry, Store


@click.command("build")
@click.argument("file", type=click.Path(readable=False, path_type=Path), metavar="CONFIG|RECIPE")
@click.option("--engine", metavar="NAME", shell_complete=engine_names, help="Only this engine of the deployment.")
@click.option("--dry-run", is_flag=True, help="Print the exact commands; change nothing.")
@click.option("--force", is_flag=True, help="Build again even if it is there.")
@click.option("--trtllm-version", metavar="V", help="With --dry-run: as with that TensorRT-LLM, installed or not.")
@json_option
def build_command(
    file: Path, *, engine: str | None, dry_run: bool, force: bool, trtllm_version: str | None, as_json: bool
) -> None:
    """Make or reuse the engines of a deployment, or of one recipe.

    \b
    coexist build configs/quickstart.yaml
    coexist build engines/smollm2-135m.yaml --dry-run
    coexist build engines/llama.yaml --dry-run --trtllm-version 1.2.0
    """
    doing = heartbeat.Doing()
    with heartbeat.beating(doing.text):
        built = workflow.build_file(
            file, Home.find(), output.say,
            only=engine, dry_run=dry_run, force=force, trtllm_version=trtllm_version, at=doing.at,
        )  # fmt: skip
    document = {"engines": [each.document() for each in built]}
    if as_json:
        output.document(document)
    elif not built:
        output.say(f"{file} defines no engine: nothing to build")
    else:
        output.console().print((tables.commands if dry_run else tables.build)(document))


@click.group("engines")
def engines_command() -> None:
    """The engine store: list, verify, adopt, prune.

    \b
    coexist engines list
    coexist engines verify
    """


@engines_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Published engines, with size and path.

    \b
    coexist engines list --json
    """
    store = Store(Home.find().root)
    engines = [_engine(entry) for entry in store.entries()]
    unreadable = [str(fault) for fault in store.unreadable()]
    if as_json:
        output.document({"engines": engines, "unreadable": unreadable})
        return
    output.console().print(tables.engines(engines))
    for fault in unreadable:
        output.say(f"unreadable: {fault}")


@engines_command.command("verify", short_help="Hash every file again and compare.")
@click.argument("name", required=False, shell_complete=engine_names)
@json_option
def verify_command(name: str | None, as_json: bool) -> None:
    """Read every file again and compare its hash with what was published.

    \b
    coexist engines verify smollm2-135m
    """
    store = Store(Home.find().root)
    checked = []
    for entry in _named(store, name):
        output.say(f"reading {entry.path}")
        checked.append({**_engine(entry), "faults": [str(fault) for fault in store.verify(entry)]})
    faults = [fault for engine in checked for fault in engine["faults"]]
    if faults:
        hint = "'coexist build --force' makes it again."
        raise ToolkitError("; ".join(faults), hint=hint, code="engine_damaged", engines=checked)
    if as_json:
        output.document({"engines": checked})
    for engine in () if as_json else checked:
        output.line(f"good {engine['path']}  ({engine['name']}, {engine['files']} files)")


@engines_command.command("adopt", short_help="Take an engine that somebody else built.")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--name", metavar="NAME", help="What to call it; the folder's name if left out.")
@click.option("--config", type=click.Path(path_type=Path), metavar="CONFIG", help="Judge it for this deployment.")
@click.option("--engine", metavar="NAME", shell_complete=engine_names, help="Which engine of the deployment it is.")
@click.option("--env", "python", type=click.Path(path_type=Path), metavar="PYTHON", help="What is to serve it.")
@json_option
def adopt_command(
    folder: Path, *, name: str | None, config: Path | None, engine: str | None, python: Path | None, as_json: bool
) -> None:
    """Take a TensorRT-LLM engine that somebody else built, after judging it for where it is to run.

    \b
    coexist engines adopt /data/llama-engine --env /opt/trtllm/bin/python
    """
    entry, findings = workflow.adopt_engine(folder, Home.find(), name=name, config=config, engine=engine, python=python)
    if as_json:
        output.document({"engine": _engine(entry), "findings": [finding.document() for finding in findings]})
        return
    for finding in findings:
        output.say(f"{finding.severity}: {finding.what}")
    output.line(f"{'reused' if entry.reused else 'adopted'} {entry.path}  ({entry.name})")


@engines_command.command("prune", short_help="Remove what nothing uses.")
@click.option(
    "--keep",
    multiple=True,
    metavar="NAME",
    shell_complete=engine_names,
    help="Keep the engines of this name; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
def prune_command(keep: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Remove engines that nothing uses, and what interrupted builds left.

    \b
    coexist engines prune --keep smollm2-135m --dry-run
    """
    store = Store(Home.find().prepared().root)
    kept = {entry.fingerprint for name in keep for entry in _named(store, name)}
    pruned = store.prune(kept, dry_run)
    document = {
        "removed": [_engine(entry) for entry in pruned.removed],
        "in_use": [_engine(entry) for entry in pruned.in_use],
        "leftovers": [str(path) for path in pruned.leftovers],
        "freed_bytes": pruned.freed_bytes,
        "dry_run": dry_run,
    }
    if as_json:
        output.document(document)
    else:
        output.console().print(tables.pruned(document))


def _named(store: Store, name: str | None) -> list[Entry]:
    """Engines of this name, fingerprint or path; all for None."""
    entries = list(store.entries())
    if name is None:
        return entries
    found = [e for e in entries if name in (e.name, str(e.path)) or e.fingerprint.startswith(name)]
    if not found:
        known = ", ".join(dict.fromkeys(entry.name for entry in entries)) or "none"
        raise ToolkitError(f"no engine '{name}'", str(store.engines), f"There are: {known}.", code="unknown_engine")
    return found


def _engine(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "fingerprint": entry.fingerprint,
        "path": str(entry.path),
        "size_bytes": entry.size_bytes,
        "files": len(entry.manifest["files"]),
        "build_seconds": entry.manifest["seconds"],
    }
