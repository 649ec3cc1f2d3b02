"""Ends that come from outside, seen by a real process: signals, a closed terminal, streams that cannot be written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.deployments import until
from tests.ports import free_port
from toolkit.supervise.state import StateFolder

ROOT = Path(__file__).resolve().parents[2]
SERVER = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
SILENT = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def program(tmp_path):
    """Starts one command line as a process of its own."""
    (tmp_path / "run").mkdir(mode=0o700)
    environ = {**os.environ, "COEXIST_HOME": str(tmp_path / "home"), "COEXIST_RUNTIME_DIR": str(tmp_path / "run")}
    started = []

    def start(*argv: str | Path, **streams) -> subprocess.Popen:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [sys.executable, str(ROOT / "toolkit" / "cli" / "__main__.py"), *map(str, argv)]
        started.append(subprocess.Popen(command, env=environ, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait()


@pytest.fixture
def deployment(tmp_path):
    def write(argv: list[str]) -> Path:
        web = {"runtime": "command", "argv": argv, "ready": {"path": "/"}, "port": free_port()}
        file = tmp_path / "deploy.yaml"
        file.write_text(json.dumps({"version": 1, "name": "demo", "services": {"web": web}}))
        return file

    return write


def read_until(process: subprocess.Popen, stream: str, word: str) -> None:
    while word not in (line := getattr(process, stream).readline()):
        assert line, f"it ended before it said {word}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_readiness_is_an_interruption_with_a_document(program, deployment, number):
    up = program("up", deployment(SILENT), "--json", "--exit-when-ready")
    read_until(up, "stderr", "web: PRELOAD")
    up.send_signal(number)
    out, err = up.communicate()
    assert up.returncode == 130
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert "web: STOPPED" in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)])
def test_a_signal_after_readiness_drains_and_stops(program, deployment, number, code):
    up = program("up", deployment(SERVER), "--json")
    assert json.loads(up.stdout.readline())["ready"] is True
    up.send_signal(number)
    out, err = up.communicate()
    assert (up.returncode, out) == (code, "")
    assert "web: STOPPED" in err


def test_a_hang_up_means_nothing_under_nohup(program, deployment):
    up = program("up", deployment(SERVER), "--json", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    up.stdout.readline()
    up.send_signal(signal.SIGHUP)
    assert program("status", "--json").wait() == 0
    up.send_signal(signal.SIGTERM)
    assert up.wait() == 0


def test_down_before_readiness_ends_up_without_calling_it_ready(program, deployment):
    up = program("up", deployment(SILENT), "--json")
    read_until(up, "stderr", "web: PRELOAD")
    assert program("down").wait() == 0
    assert json.loads(up.communicate()[0])["error"]["code"] == "interrupted"


def test_stopping_the_only_service_before_readiness_ends_up(program, deployment):
    up = program("up", deployment(SILENT), "--json")
    read_until(up, "stderr", "web: PRELOAD")
    assert program("stop", "web").wait() == 0
    assert up.communicate() is not None
    assert up.returncode == 130


def test_interrupting_a_detached_start_stops_what_it_started(program, deployment, tmp_path):
    up = program("up", deployment(SILENT), "--detach", "--json")
    events = tmp_path / "home" / "state" / "demo" / "events.jsonl"
    until(lambda: events.exists() and "PRELOAD" in events.read_text())
    up.send_signal(signal.SIGINT)
    assert json.loads(up.communicate()[0])["error"]["code"] == "interrupted"
    assert up.returncode == 130
    assert program("status").wait() == 1


def test_a_detached_start_tells_its_stages_on_the_way(program, deployment):
    up = program("up", deployment(SILENT), "--detach")
    read_until(up, "stderr", "web: PRELOAD")
    up.send_signal(signal.SIGINT)
    up.communicate()
    assert up.returncode == 130


def test_of_two_detached_starts_each_gets_its_own_answer(program, deployment):
    file = deployment(SERVER)
    answers = [json.loads(each.communicate()[0]) for each in [program("up", file, "--detach", "--json") for _ in "ab"]]
    ready = [answer for answer in answers if "error" not in answer]
    # The later one finds it starting (an error), or running: then nothing is different.
    assert sum(answer["changes"] is None for answer in ready) == 1
    assert all(answer["deployment"] == "demo" and answer["ready"] for answer in ready)
    assert program("down").wait() == 0


def test_a_deadline_ends_a_preparation_too(program, tmp_path, deployment):
    file = deployment(SERVER)
    answer = program("up", file, "--timeout", "1ms", "--json")
    assert json.loads(answer.communicate()[0])["error"]["code"] == "not_ready"
    assert answer.returncode == 4


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_fault(closed):
    line = f'"{sys.executable}" -m toolkit.cli schema recipe {closed}'
    done = subprocess.run(["/bin/sh", "-c", line], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_answer_that_cannot_be_written_is_one_error(program, flags):
    with Path("/dev/full").open("w") as full:
        command = program("schema", "recipe", *flags, stdout=full)
        said = command.communicate()[1]
    assert command.returncode == 1
    assert said == "error: standard output: cannot write the answer: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_lost_terminal_does_not_keep_up_from_its_work(program, deployment):
    with Path("/dev/full").open("w") as full:
        up = program("up", deployment(SERVER), "--exit-when-ready", "--json", stderr=full)
        assert json.loads(up.communicate()[0])["ready"] is True
    assert up.returncode == 0


def test_a_terminal_that_nobody_reads_halts_no_supervision(program, deployment, tmp_path):
    reader, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(full, b"x" * 4096):
            pass
    os.set_blocking(full, True)
    up = program("up", deployment(SERVER), stdout=full, stderr=full)
    os.close(full)
    state = StateFolder(tmp_path / "home" / "state" / "demo")
    until(lambda: (status := state.status()) and status["ready"])
    assert program("restart", "web").wait() == 0
    until(lambda: state.status()["services"][0]["attempt"] == 2)
    assert program("down").wait() == 0
    with os.fdopen(reader, "rb") as read:
        assert b"ready. Try:" in read.read(), "told late is not lost"
    assert up.wait() == 0


@pytest.mark.parametrize("command", [("status", "--watch", "--json"), ("logs", "-f")])
def test_what_follows_ends_with_its_reader(program, deployment, command):
    up = program("up", deployment(SERVER), "--json")
    up.stdout.readline()
    follower = program(*command)
    assert follower.stdout.readline()
    follower.stdout.close()
    assert follower.wait() == 0
