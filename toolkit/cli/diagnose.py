"""The command that reads a start log: diagnose."""

from __future__ import annotations

import getpass
import json
import platform
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit import __version__
from toolkit.cli import output
from toolkit.cli.options import deployment_option, host_option, json_option
from toolkit.diagnose import Context, Diagnosis, Ending, bundle, classify
from toolkit.diagnose import follow as following
from toolkit.diagnose.context import context_of
from toolkit.errors import ToolkitError, UsageError
from toolkit.home import Home
from toolkit.names import nearest

if TYPE_CHECKING:
    from toolkit.supervise.logs import LogView
    from toolkit.supervise.state import StateFolder

_PACKAGES = ("click", "pydantic", "PyYAML", "aiohttp", "nvidia-ml-py", "psutil")


@dataclass(frozen=True)
class _Target:
    """What to read: a file, or standard input (``path`` None); ``service`` where it is a service's log.

    Reading begins at ``start_bytes`` of the file: the last attempt. ``view`` holds all of it, its ranks' files too.
    """

    path: Path | None
    service: str | None = None
    status: dict[str, Any] | None = None
    goes_on: Callable[[], bool] = lambda: True
    start_bytes: int = 0
    view: LogView | None = None


@click.command("diagnose")
@click.argument("log", required=False, metavar="[FILE|SERVICE|-]")
@deployment_option
@click.option("-f", "--follow", is_flag=True, help="Go on as the log is written; tell every change.")
@click.option("--exit-code", type=int, metavar="N", help="The exit code of the process (137: killed; or -9).")
@click.option("--oom-killed/--not-oom-killed", default=None, help="What memory.events of its control group says.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Output of 'plan --json'.")
@host_option
@click.option("--bundle", "bundle_file", type=click.Path(path_type=Path), metavar="OUT.tar.gz",
              help="Also write a bug report: log, plan, host, versions, without secrets.")  # fmt: skip
@json_option
def diagnose_command(
    *, log: str | None, deployment: str | None, follow: bool, exit_code: int | None, oom_killed: bool | None,
    plan_file: Path | None, host_file: Path | None, bundle_file: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Say why a start failed or stalls: the decisive line, who is guilty, and whether a restart can help.

    \b
    coexist diagnose server.log
    kubectl logs llm-0 --previous | coexist diagnose -
    coexist diagnose llm -f                      the log of a service of the running deployment
    """
    target = _target(log, deployment)
    plan, host = _document(plan_file), _document(host_file)
    if not follow and bundle_file is None and _serves(target):
        _show(Diagnosis("healthy", "none", f"'{target.service}' is SERVING.", "Nothing to do."), as_json)
        return
    context = context_of(target.service, plan, host)
    if follow and target.path is not None:
        _follow(target, target.path, context, as_json)
        return
    ending = Ending(exit_code, oom_killed)
    data, found = _read(target, ending, context, keep=bundle_file is not None)
    if found.kind in {"unknown", "healthy"} and ending == Ending():
        found = _remembered(target, found)
    _show(found, as_json)
    if bundle_file is not None:
        _write_bundle(bundle_file, data, found, plan or target.status, host)


def _target(log: str | None, deployment: str | None) -> _Target:
    """A file where one has the name, else a service; standard input for ``-`` and for a pipe without a name."""
    if log == "-" or (log is None and not sys.stdin.isatty()):
        return _Target(None)
    if log is not None and deployment is None and Path(log).exists():
        return _Target(Path(log))
    if log is None:
        raise UsageError("which log?", hint="Give a file, a service, or - for standard input.", code="usage")
    return _service(log, deployment)


def _service(name: str, deployment: str | None) -> _Target:
    """The log of a service of the deployment that is named, or of the one that wrote such a log last."""
    from toolkit.supervise.log_times import dropped_bytes
    from toolkit.supervise.logs import LogView
    from toolkit.supervise.state import StateFolder

    folder = Home.find().states
    found = [path for path in folder.glob("*/logs/*.log") if deployment in (None, path.parents[1].name)]
    paths = [path for path in found if path.stem == name]
    if not paths:
        raise _no_log(name, deployment, sorted({path.stem for path in found}))
    path = max(paths, key=lambda each: each.stat().st_mtime)
    state = StateFolder(path.parents[1])
    start = state.last_start_bytes(name)
    in_file = max(0, start - dropped_bytes(path))
    return _Target(path, name, state.status(), lambda: _is_alive(state), in_file, LogView(path, start))


def _serves(target: _Target) -> bool:
    """Whether the log is of a service that is SERVING now, whatever was written on the way there."""
    services = target.status["services"] if target.status and target.goes_on() else []
    return any(each["name"] == target.service and each["state"] == "SERVING" for each in services)


def _remembered(target: _Target, found: Diagnosis) -> Diagnosis:
    """What the supervisor, who saw how the last attempt went, knows better than a log without a cause of its end."""
    services = target.status["services"] if target.status else []
    service = next((each for each in services if each["name"] == target.service), None)
    if service is None:
        return found
    failure = service["last_failure"]
    if found.kind == "unknown" and service["state"] in ("INIT", "PRELOAD", "PRIME") and target.goes_on():
        why = f"'{target.service}' is in {service['state']}, and its log names no cause to worry."
        return replace(found, kind="healthy", verdict="wait", summary=why, advice="Wait; '-f' tells every change.")
    if service["state"] in ("FAILED", "BACKOFF", "STOPPED") and failure and failure["attempt"] == service["attempt"]:
        return Diagnosis(failure["class"], failure["verdict"], failure["summary"], failure["advice"],
                         culprit=failure["culprit"], line=failure["line"])  # fmt: skip
    if service["state"] == "STOPPED":
        return Diagnosis("stopped", "none", f"'{target.service}' was stopped; it did not fail.", "Nothing to do.")
    return found


def _is_alive(state: StateFolder) -> bool:
    owner = state.owner()
    return owner is not None and owner.alive


def _no_log(name: str, deployment: str | None, known: list[str]) -> ToolkitError:
    near = nearest(name, known)
    of = f" of deployment '{deployment}'" if deployment else ""
    hint = f"Did you mean '{near}'?" if near else f"Services with a log: {', '.join(known) or 'none'}."
    return ToolkitError(f"there is no file and no service{of} with a log named '{name}'", hint=hint, code="no_log")


def _document(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolkitError(f"cannot read it as JSON: {error}", str(path), code="bad_file") from error
    if not isinstance(value, dict):
        raise ToolkitError("this is not a JSON object", str(path), code="bad_file")
    return value


def _read(target: _Target, ending: Ending, context: Context, keep: bool) -> tuple[bytes, Diagnosis]:
    """The diagnosis, and the log where it is to be kept for a bundle."""
    kept: list[bytes] = []

    def pieces() -> Iterator[bytes]:
        for piece in _pieces(target):
            if keep:
                kept.append(piece)
            yield piece

    try:
        found = classify(pieces(), ending, context, lines_before=_lines_before(target))
    except OSError as error:
        raise _unreadable(target, error) from error
    return b"".join(kept), found


def _pieces(target: _Target) -> Iterator[bytes]:
    if target.view is not None:
        return target.view.pieces()
    if target.path is not None:
        return following.read_pieces(target.path)
    return iter(lambda: sys.stdin.buffer.read(following.CHUNK_BYTES), b"")


def _lines_before(target: _Target) -> int:
    return following.count_lines(target.path, target.start_bytes) if target.path and target.start_bytes else 0


def _follow(target: _Target, path: Path, context: Context, as_json: bool) -> None:
    try:
        for found in following.follow(path, context, target.goes_on, start_bytes=target.start_bytes):
            _show(found, as_json)
    except OSError as error:
        raise _unreadable(target, error) from error


def _unreadable(target: _Target, error: OSError) -> ToolkitError:
    hint = "Give a text file, a service of a deployment, or '-'."
    return ToolkitError(f"cannot read it: {error.strerror}", str(target.path or "-"), hint, code="no_log")


def _show(found: Diagnosis, as_json: bool) -> None:
    if as_json:
        output.document(found.document())
        return
    where = f" in line {found.root_line}" if found.root_line else ""
    output.line(f"{found.kind} ({found.verdict.replace('_', ' ')}){where}")
    rows = [("guilty", found.culprit), ("line", found.line), ("why", found.summary), ("do", found.advice)]
    rows += [("also", each) for each in found.also]
    rows += [("check", f"'coexist check' tells this before a start: {found.rule}" if found.rule else None)]
    for name, text in rows:
        if text:
            output.line(f"  {name:7} {text}")


def _write_bundle(
    path: Path, log: bytes, found: Diagnosis, plan: dict[str, Any] | None, host: dict[str, Any] | None
) -> None:
    documents = {
        "diagnosis": {"schema": 1, **found.document()},
        "plan": plan,
        "host": host or _this_host(),
        "versions": _versions(),
    }
    names = [getpass.getuser(), socket.gethostname()]
    files = bundle.write(path, log, documents, names)
    output.say(f"wrote {path}: {', '.join(files)}; look through it before you send it")


def _this_host() -> dict[str, Any] | None:
    from toolkit import workflow
    from toolkit.host import record

    try:
        return record.document(workflow.this_host())
    except ToolkitError:
        return None


def _versions() -> dict[str, Any]:
    found = {name: _version(name) for name in _PACKAGES}
    return {"coexist": __version__, "python": sys.version, "system": platform.platform(), "packages": found}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
