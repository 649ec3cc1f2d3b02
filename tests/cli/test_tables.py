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


def test_a_plan_on_a_narrow_terminal_breaks_no_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = "GPU-a170b338-3926-4059-b28c-105d1fb17c23"
    service = {
        "name": "frontend", "runtime": "transformers", "gpus": [{"index": 1, "uuid": uuid, "budget_mib": 71680}],
        "cpus": "56-67,168-179", "numa_nodes": [1], "memory_bind": [1], "port": 8002, "wave": 0, "after": ["llm"],
        "argv": ["serve"], "notes": [],
    }  # fmt: skip
    held = {"service": "frontend", "for": "CUDA context", "mib": 768}
    line = {"gpu": uuid, "total_mib": 81559, "free_mib": 9111, "reserved": [held]}
    monkeypatch.setenv("COLUMNS", "80")
    text = "\n".join(shown(capsys, tables.plan({"services": [service], "ledger": [line], "notes": []})))
    assert "168-179" in text
    assert "1 (GPU-a170b338)" in text


def test_a_table_in_a_pipe_is_as_wide_as_it_needs_to_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    path = "/home/jane/.local/share/coexist/engines/0a9fd64b9306bc9d"
    engine = {"name": "smollm2-135m", "fingerprint": "0" * 64, "size_bytes": 1, "build_seconds": 251.3, "path": path}
    assert path in shown(capsys, tables.engines([engine]))[1]
