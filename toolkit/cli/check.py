"""The command about living together: check, what-if, matrix, explain, smoke."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolkit.cli import output
from toolkit.cli.options import host_option, json_option
from toolkit.errors import ToolkitError, UsageError
from toolkit.names import suggestion

if TYPE_CHECKING:
    from rich.console import RenderableType

    from toolkit.compat.model import Finding, Pair, Report
    from toolkit.host.model import Host
    from toolkit.host.smoke import Probe

INCOMPATIBLE = 1
STYLES = {"runnable": "green", "compatible": "green", "unknown": "yellow", "incompatible": "red"}
SEVERITY_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


@click.command("check")
@click.argument("config", required=False, type=click.Path(readable=False, path_type=Path))
@click.option("--env", "environments", multiple=True, metavar="NAME=PYTHON", help="Check this environment. Repeatable.")
@click.option("--versions", metavar="PACKAGE=VERSION,…", help="What if these were installed? Also cuda=, python=.")
@click.option("--gpu", metavar="SM", help="The GPU of a what-if, such as sm_90; else this host's.")
@click.option("--matrix", is_flag=True, help="TensorRT-LLM by flash-attn, with sources.")
@click.option("--explain", metavar="ID", help="What a finding means.")
@click.option("--smoke", is_flag=True, help="Run a kernel on every GPU and read its health. Fit for an init container.")
@host_option
@json_option
def check_command(  # noqa: PLR0917  one name per option
    config: Path | None,
    environments: tuple[str, ...],
    versions: str | None,
    gpu: str | None,
    matrix: bool,
    explain: str | None,
    smoke: bool,
    host_file: Path | None,
    as_json: bool,
) -> int:
    """Say whether these can live together on this host, how close, and what to change. Imports and starts nothing.

    \b
    coexist check configs/quickstart.yaml
    coexist check --env llm=/opt/trtllm/bin/python --env flash=/opt/flash/bin/python
    coexist check --versions tensorrt-llm=0.12.0,flash-attn=2.6.3,torch=2.4.0 --gpu sm_90
    """
    asked = {
        "CONFIG": config, "--env": environments, "--versions": versions, "--matrix": matrix, "--explain": explain,
        "--smoke": smoke,
    }  # fmt: skip
    _one_question([name for name, value in asked.items() if value], gpu, host_file)
    if explain is not None:
        return _explain(explain, as_json)
    if matrix:
        return _matrix(as_json)
    if smoke:
        return _smoke(as_json)
    return _tell(_report(config, environments, versions, gpu, host_file), as_json)


def _one_question(asked: list[str], gpu: str | None, host_file: Path | None) -> None:
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} are different questions: ask one of them", code="usage")
    if not asked:
        hint = "Name a deployment, or see 'coexist check --help'."
        raise UsageError("nothing to check: give CONFIG, --env, --versions, --matrix, --explain or --smoke", hint=hint)
    if gpu is not None and asked != ["--versions"]:
        raise UsageError("--gpu belongs to --versions; a deployment is checked for --host or this host", code="usage")
    if host_file is not None and (gpu is not None or asked[0] in {"--matrix", "--explain", "--smoke"}):
        raise UsageError(f"--host does not go with {'--gpu' if gpu is not None else asked[0]}", code="usage")


def _report(
    config: Path | None,
    environments: tuple[str, ...],
    versions: str | None,
    gpu: str | None,
    host_file: Path | None,
) -> Report:
    from toolkit.assemble import check

    if versions is not None:
        return check.check_versions(_pairs(versions), gpu, None if gpu else _host(host_file))
    if environments:
        return check.check_environments(_environments(environments), _host(host_file))
    assert config is not None  # noqa: S101  _one_question has seen to it
    return _of_deployment(config, host_file)


def _of_deployment(config: Path, host_file: Path | None) -> Report:
    from toolkit.assemble import check
    from toolkit.config import load
    from toolkit.home import Home

    return check.check_deployment(load.deployment(config), _host(host_file), Home.find())


def _host(host_file: Path | None) -> Host:
    from toolkit import affinity
    from toolkit.host import probe, record

    # Not workflow.this_host: all that a start needs takes longer to import than the check takes.
    here = affinity.probe_mempolicy_permitted
    return record.load(host_file) if host_file else probe.probe(mempolicy_permitted=here)


def _pairs(text: str) -> dict[str, str]:
    """The versions in ``tensorrt-llm=0.12.0,cuda=12.5``."""
    found = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, version = part.replace("==", "=").partition("=")
        if not (name and equals and version):
            hint = "Write --versions tensorrt-llm=0.12.0,flash-attn=2.6.3."
            raise ToolkitError(f"'{part}' is no PACKAGE=VERSION", "--versions", hint, code="version")
        if name.strip() in found:
            what = f"{name.strip()} is named twice"
            raise ToolkitError(what, "--versions", "Name one version of each.", code="version")
        found[name.strip()] = version.strip()
    if not found:
        raise ToolkitError("no version is named", "--versions", "Write --versions tensorrt-llm=0.12.0.", code="version")
    return found


def _environments(texts: tuple[str, ...]) -> dict[str, Path]:
    """The environments in ``NAME=PYTHON`` texts."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            hint = "Write --env llm=/opt/trtllm/bin/python."
            raise ToolkitError(f"'{text}' is no NAME=PYTHON", "--env", hint, code="environment")
        if not Path(path).expanduser().exists():
            hint = "Name a Python interpreter, or the folder of an environment."
            raise ToolkitError(f"'{path}' does not exist", f"--env {name}", hint, code="not_found")
        if name in found:
            raise ToolkitError(f"'{name}' is named twice", "--env", "Give each a name of its own.", code="environment")
        found[name] = Path(path).expanduser()
    return found


def _tell(report: Report, as_json: bool) -> int:
    if as_json:
        output.document(report.document())
    else:
        console = output.console()
        for part in _shown(report):
            console.print(part)
    if report.verdict == "unknown":
        output.say("warning: no source says whether this works; see the findings marked unknown")
    return INCOMPATIBLE if report.verdict == "incompatible" else 0


def _shown(report: Report) -> list[RenderableType]:
    from rich.text import Text

    verdict = Text.assemble("verdict: ", (report.verdict, f"bold {STYLES[report.verdict]}"))
    pairs = [_pair(pair) for pair in report.pairs]
    findings = [part for finding in report.findings for part in _finding(finding)]
    return [*findings, *pairs, verdict]


def _pair(pair: Pair) -> RenderableType:
    from rich.text import Text

    needs = f", needs {', '.join(pair.needs)}" if pair.needs else ""
    return Text.assemble((f"{pair.a} and {pair.b}: ", "bold"), (pair.closest, "cyan"), f"{needs}. {pair.why}")


def _finding(finding: Finding) -> list[RenderableType]:
    from rich.text import Text

    style = SEVERITY_STYLES[finding.severity]
    where = f" [{finding.environment}]" if finding.environment else ""
    head = Text.assemble((finding.severity, style), f"{where} {finding.what}  ", (finding.id, "dim"))
    lines = [finding.why, f"fix: {finding.fix}", *finding.evidence]
    return [head, *(Text(f"    {line}") for line in lines)]  # rich's Padding would crop them at the width


def _explain(rule: str, as_json: bool) -> int:
    from toolkit.compat import book

    found = book.rules().get(rule)
    if found is None:
        hint = suggestion(rule, book.rules())
        raise ToolkitError(f"no finding has the id '{rule}'", "--explain", hint, code="unknown_rule")
    if as_json:
        output.document(found.document())
        return 0
    by = {"check": "before a launch", "build": "by the build", "plan": "by the plan", "start": "while services start"}
    rows = [("severity", found.severity), ("what", found.what), ("why", found.why), ("fix", found.fix)]
    rows += [("seen to", by[found.by]), ("source", "; ".join(found.source))]
    output.line(found.id)
    for name, text in rows:
        output.line(f"  {name}: {text}")
    return 0


def _matrix(as_json: bool) -> int:
    from toolkit import facts
    from toolkit.compat import matrix

    document = matrix.document(facts.load())
    if as_json:
        output.document(document)
    else:
        output.console().print(_table(document))
        output.say("the sources: coexist check --matrix --json, or docs/compatibility.md")
    return 0


def _table(document: Mapping[str, Any]) -> RenderableType:
    from rich.table import Table

    table = Table(title="Which flash-attn can share an environment with TensorRT-LLM", show_lines=True)
    for title in ("TensorRT-LLM", "torch", "as it is", "after a source build", "no", "unknown"):
        table.add_column(title, overflow="fold")
    for release in document["tensorrt_llm"]:
        torch = (release["torch"] or {}).get("value", "unknown")
        answers = (_flash_names(document, release["versions"], answer) for answer in ("yes", "build", "no", "unknown"))
        table.add_row(release["versions"].removeprefix("=="), torch, *answers)
    return table


def _flash_names(document: Mapping[str, Any], release: str, answer: str) -> str:
    """The flash-attn releases with this answer, by package."""
    found: dict[str, list[str]] = {}
    for pair in document["pairs"]:
        if pair["tensorrt_llm"] == release and pair["one_environment"] == answer:
            found.setdefault(pair["package"], []).append(pair["flash_attn"].replace("==", ""))
    return "\n".join(f"{package}: {', '.join(names)}" for package, names in found.items())


def _smoke(as_json: bool) -> int:
    from toolkit.host import smoke

    found = smoke.run()
    if as_json:
        output.document(found.document())
    else:
        for line in _smoke_lines(found.probes):
            output.line(line)
        output.line(found.summary)
    return 0 if found.ok else 1


def _smoke_lines(probes: tuple[Probe, ...]) -> list[str]:
    return [f"{probe.state:>7}  {probe.subject}: {probe.name}: {probe.detail}" for probe in probes]
