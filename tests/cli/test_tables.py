from __future__ import annotations

import shlex

import pytest

from toolkit.cli import output, tables

ARGV = ["/opt/a b/python", "run.py", "--canary-prompt=The capital of [bold]France[/] is", "--json", '{"a": [1]}'] + [
    f"--flag-{n}" for n in range(40)
]


def shown(capsys: pytest.CaptureFixture[str], part: object) -> list[str]:
    output.console().print(part)
    return capsys.readouterr().out.splitlines()


def test_a_command_of_a_dry_run_can_be_copied_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    command = {"argv": ARGV, "env": {"CXX": "g++ -O1", "LANG": "C.UTF-8"}}
    engine = {"name": "llm", "path": "/e", "commands": [command], "guards": [], "notes": []}
    lines = shown(capsys, tables.commands({"engines": [engine]}))
    assert shlex.split(lines[1]) == ["CXX=g++ -O1", "LANG=C.UTF-8", *ARGV]


def test_a_command_of_a_plan_can_be_copied_into_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    service = {
        "name": "llm", "runtime": "torch", "gpus": [], "cpus": "0", "numa_nodes": [0], "memory_bind": None,
        "port": 8001, "wave": 0, "after": [], "argv": ARGV, "notes": ["a [note] in brackets"],
    }  # fmt: skip
    lines = shown(capsys, tables.plan({"services": [service], "ledger": [], "notes": []}))
    assert ["llm:", *ARGV] in [shlex.split(line) for line in lines]
    assert lines[-1] == "note: llm: a [note] in brackets"
