"""A deployment that still checks, plans or builds, asked from a second command line: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_interruption import SERVER, SILENT, read_until

ROOT = Path(__file__).resolve().parents[2]
# The command line, with a check that takes its time.
SLOW = """
import sys, time
from toolkit import workflow
from toolkit.cli import heartbeat
heartbeat.EVERY_S = 0.01
def check(*_):
    print("checks", file=sys.stderr, flush=True)
    time.sleep(600)
workflow.check = check
from toolkit.cli import main
main()
"""
QUICK = "from toolkit.cli import heartbeat, main; heartbeat.EVERY_S = 0.01; main()"


@pytest.fixture
def program(tmp_path):
    """Starts one command line as a process of its own; ``slow``: its check does not end."""
    (tmp_path / "run").mkdir(mode=0o700)
    own = {"COEXIST_HOME": str(tmp_path / "home"), "COEXIST_RUNTIME_DIR": str(tmp_path / "run")}
    environ = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
    started = []

    def start(*argv: str | Path, slow: bool = False) -> subprocess.Popen:
        command = [sys.executable, "-c", SLOW if slow else QUICK, *map(str, argv)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environ, text=True, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def deployment(folder, argv):
    web = {"runtime": "command", "argv": argv, "ready": {"path": "/"}}
    file = folder / "deploy.yaml"
    file.write_text(json.dumps({"version": 1, "name": "demo", "services": {"web": web}}))
    return file


@pytest.fixture
def up(program, tmp_path):
    """``up --json`` in the middle of its check."""
    process = program("up", deployment(tmp_path, SERVER), "--json", slow=True)
    read_until(process, "stderr", "checks")
    return process


def answer(process):
    out, err = process.communicate()
    return process.returncode, out, err


def test_status_says_at_which_step_a_start_is(program, up):
    code, out, _ = answer(program("status"))
    assert code == 0
    assert out.startswith(f"demo is starting (pid {up.pid}): checking whether all can live together here for ")
    code, out, _ = answer(program("status", "--json", "--exit-code"))
    document = json.loads(out)
    assert (code, document["ready"], document["starting"]["step"]) == (4, False, "check")
    assert [service["name"] for service in document["services"]] == ["web"]


def test_what_cannot_be_asked_of_a_start_is_refused_with_the_next_step(program, up):
    for command in (["stop", "web"], ["restart", "web"], ["logs"]):
        code, out, _ = answer(program(*command, "--json"))
        assert (code, json.loads(out)["error"]["code"]) == (1, "starting")


def test_down_interrupts_a_start(program, up):
    code, out, _ = answer(program("down"))
    assert (code, out) == (0, "demo is stopped\n")
    code, out, _ = answer(up)
    assert (code, json.loads(out)["error"]["code"]) == (130, "interrupted")
    assert answer(program("status"))[0] == 1


def test_a_start_that_was_killed_is_no_start_any_more(program, up):
    up.send_signal(signal.SIGKILL)
    up.wait()
    code, _, err = answer(program("status"))
    assert (code, "no deployment is running" in err) == (1, True)
    code, _, err = answer(program("status", "--deployment", "demo"))
    assert (code, "'demo' is not running" in err) == (1, True)


def test_without_a_terminal_a_start_gives_signs_of_life_on_standard_error(up):
    read_until(up, "stderr", "still checking whether all can live together here (")
    up.send_signal(signal.SIGINT)
    assert json.loads(up.communicate()[0])["error"]["code"] == "interrupted"


def test_so_does_a_service_that_takes_long_to_become_ready(program, tmp_path):
    starts = program("up", deployment(tmp_path, SILENT), "--json")
    read_until(starts, "stderr", "still starting: 'web' is in PRELOAD for ")
    starts.send_signal(signal.SIGINT)
    assert json.loads(starts.communicate()[0])["error"]["code"] == "interrupted"
