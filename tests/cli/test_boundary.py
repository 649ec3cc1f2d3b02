from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from toolkit.cli import root
from toolkit.errors import ManyFaultsError, NotReadyInTimeError, ToolkitError


@pytest.fixture
def failing(monkeypatch):
    """A command 'fail' that raises what the test wants."""

    def install(problem: BaseException) -> None:
        @click.command("fail")
        @click.option("--json", "as_json", is_flag=True)
        def command(as_json: bool) -> None:
            raise problem

        monkeypatch.setattr(root.Lazy, "get_command", lambda self, ctx, name: command)
        monkeypatch.setitem(root.COMMANDS, "fail", ("", "fails"))

    return install


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (ToolkitError("no"), 1),
        (NotReadyInTimeError("late"), 4),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("odd"), 2),
        (ZeroDivisionError("oops"), 3),
    ],
)
def test_every_end_has_its_exit_code_with_and_without_json(coexist, failing, problem, code):
    failing(problem)
    assert coexist("fail").code == code
    answer = coexist("fail", "--json")
    assert answer.code == code
    assert set(answer.error) >= {"code", "what", "where", "hint"}


def test_a_fault_of_coexist_shows_no_traceback_and_keeps_it_in_a_report(coexist, failing, tmp_path):
    failing(ZeroDivisionError("oops"))
    answer = coexist("fail")
    assert "Traceback" not in answer.err
    assert "report" in answer.err
    assert "ZeroDivisionError: oops" in (tmp_path / "home" / "fault.txt").read_text()


def test_all_faults_of_a_file_are_told_each_with_its_place(coexist, failing):
    failing(ManyFaultsError((ToolkitError("one", "a:1", "do this"), ToolkitError("two", "a:2"))))
    assert coexist("fail").err.splitlines() == ["error: a:1: one", "  hint: do this", "error: a:2: two"]
    assert [fault["where"] for fault in coexist("fail", "--json").error["faults"]] == ["a:1", "a:2"]


def test_details_of_an_error_travel_into_its_document(coexist, failing):
    failing(ToolkitError("too much", resource="cpus", needed=4, available=2))
    assert coexist("fail", "--json").error["needed"] == 4


def test_a_wrong_command_suggests_the_nearest(coexist):
    answer = coexist("biuld")
    assert answer.code == 2
    assert "did you mean 'build'?" in answer.err


@pytest.mark.parametrize("words", [[], ["engines"]])
def test_no_command_at_all_gives_the_help_as_wrong_usage_and_no_error(coexist, words):
    answer, asked = coexist(*words), coexist(*words, "--help")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == asked.out


def test_a_wrong_option_is_wrong_usage(coexist):
    answer = coexist("plan", "--jsn")
    assert answer.code == 2
    assert "coexist plan --help" in answer.err


@pytest.mark.parametrize("name", list(root.COMMANDS))
def test_every_command_explains_itself_with_an_example(coexist, name):
    answer = coexist(name, "--help")
    assert answer.code == 0
    assert "coexist " in answer.out.partition("\n")[2]


@pytest.mark.parametrize("name", list(root.COMMANDS))
def test_every_command_answers_in_json_when_asked(name):
    command = root.root.get_command(click.Context(root.root), name)
    doers = command.commands.values() if isinstance(command, click.Group) else [command]
    assert all(any("--json" in option.opts for option in doer.params) for doer in doers)


def test_help_imports_nothing_heavy():
    heavy = ("pydantic", "rich", "aiohttp", "torch", "yaml")
    code = (
        "import sys; from toolkit.cli.boundary import run; run(['--help']); "
        f"sys.exit(any(name in sys.modules for name in {heavy}))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == 0


def test_a_reader_that_leaves_early_gets_no_complaint():
    command = [sys.executable, "-m", "toolkit.cli", "schema", "deployment"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("name", [b"caf\xe9.yaml", "café.yaml".encode()])
@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_file_name_that_the_terminal_cannot_show_is_no_fault(name, flags, tmp_path):
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "COEXIST_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "toolkit.cli", "plan", name, *flags]
    done = subprocess.run(command, env=environ, check=False, capture_output=True)
    assert done.returncode == 1
    said = json.loads(done.stdout)["error"]["what"] if flags else done.stderr.decode()
    assert "no such file" in said


@pytest.mark.parametrize("command", [("plan",), ("up",), ("build",), ("check",), ("host", "parse")])
def test_a_file_that_may_not_be_read_is_not_wrong_usage(coexist, command, tmp_path, monkeypatch):
    file = tmp_path / "deploy.yaml"
    file.write_text("- not a deployment")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert coexist(*command, file).code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("build", "{recipe}"),
        ("up", "{config}"),
        ("up", "{config}", "--detach"),
        ("up", "{config}", "--exit-when-ready"),
        ("bench", "cold-start", "{config}"),
        ("engines", "prune"),
        ("engines", "adopt", "{folder}"),
    ],
)
@pytest.mark.parametrize("home", ["/proc/nope", "{folder}/file", "{folder}/file/home"])
def test_a_home_that_keeps_nothing_is_for_a_person_to_change(coexist, tmp_path, monkeypatch, words, home):
    service = {"runtime": "command", "argv": ["sleep", "9"], "ready": {"log": "x"}, "canary": {"path": "/"}}
    config, recipe = tmp_path / "deploy.yaml", tmp_path / "recipe.yaml"
    config.write_text(json.dumps({"version": 1, "name": "demo", "services": {"web": service}}))
    recipe.write_text(json.dumps({"version": 1, "name": "tiny", "builder": "torch", "model": str(tmp_path)}))
    (tmp_path / "file").touch()
    chosen = home.format(folder=tmp_path)
    monkeypatch.setenv("COEXIST_HOME", chosen)
    answer = coexist(*(word.format(config=config, recipe=recipe, folder=tmp_path) for word in words), "--json")
    assert (answer.code, answer.error["code"], answer.error["where"]) == (1, "not_writable", chosen)
    assert "COEXIST_HOME" in answer.error["hint"]
