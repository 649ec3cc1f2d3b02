from __future__ import annotations

import json
import sys
import time

import pytest

from tests.ports import free_port


@pytest.fixture
def running(coexist, tmp_path):
    """A detached deployment of one tiny server; it is down again after the test."""
    argv = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
    web = {"runtime": "command", "argv": argv, "ready": {"path": "/"}, "port": free_port()}
    file = tmp_path / "deploy.yaml"
    file.write_text(json.dumps({"version": 1, "name": "demo", "services": {"web": web}}))
    started = coexist("up", file, "--detach", "--json")
    assert started.code == 0, started.out
    yield started.document
    coexist("down")


def test_nothing_running_is_said_by_every_command(coexist):
    for command in (["status"], ["down"], ["stop", "web"], ["restart", "web"]):
        answer = coexist(*command, "--json")
        assert answer.code == 1
        assert answer.error["code"] == "not_running"


def test_a_detached_deployment_answers_until_it_is_taken_down(coexist, running):
    status = coexist("status", "--json").document
    assert status["ready"] is True
    assert status["services"][0]["pid"] == running["services"][0]["pid"]
    assert coexist("down", "--json").document["action"] == "down"
    assert coexist("status").code == 1


def test_the_exit_code_of_status_says_whether_all_is_ready(coexist, running):
    assert coexist("status", "--exit-code").code == 0
    assert coexist("status", "--exit-code", "--watch").code == 2
    coexist("stop", "web")
    waits_until(lambda: coexist("status", "--exit-code").code == 4)
    answer = coexist("status", "--exit-code", "--json")
    assert (answer.code, answer.document["ready"]) == (4, False)


def test_of_several_deployments_status_shows_a_line_each_and_all_else_asks_for_a_name(coexist, running, tmp_path):
    file = tmp_path / "deploy.yaml"
    other = {**json.loads(file.read_text()), "name": "other"}
    other["services"]["web"]["port"] = free_port()
    file.write_text(json.dumps(other))
    up = coexist("up", file, "--detach")
    assert up.code == 0, up.err
    try:
        table = coexist("status")
        assert table.code == 0
        assert [line.split()[:4] for line in table.out.splitlines()[1:]] == [
            ["demo", "yes", "1", "SERVING"],
            ["other", "yes", "1", "SERVING"],
        ]
        assert "--deployment NAME" in table.err
        for command in ("status", "logs", "down", "stop web", "restart web", "status --exit-code"):
            refused = coexist(*command.split(), "--json")
            assert (refused.code, refused.error["deployments"]) == (1, ["demo", "other"])
            assert "--deployment NAME" in refused.error["hint"]
        assert coexist("status", "--deployment", "other", "--json").document["deployment"] == "other"
    finally:
        assert coexist("down", "--deployment", "other").code == 0


def test_detaching_runs_this_coexist_and_no_folder_of_that_name(coexist, tmp_path, monkeypatch, request):
    (tmp_path / "toolkit").mkdir()
    (tmp_path / "toolkit" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    assert request.getfixturevalue("running")["ready"] is True


def test_logs_of_a_service_are_shown(coexist, running):
    assert "GET / HTTP/1.1" in coexist("logs", "web").out
    assert "web | " in coexist("logs", "--all").out
    lines = [json.loads(line) for line in coexist("logs", "--json").out.splitlines()]
    assert all(list(line) == ["schema", "service", "rank", "at", "line"] for line in lines)
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert coexist("logs", "wbe").code == 1
    newest = coexist("logs", "-n", "2", "--json").out.splitlines()
    assert [json.loads(line)["line"] for line in newest] == [line["line"] for line in lines[-2:]]
    assert coexist("logs", "web", "-n", "0").out == ""
    assert coexist("logs", "-n", "-1").code == 2


def test_an_unknown_service_suggests_the_nearest(coexist, running):
    answer = coexist("restart", "webb", "--json")
    assert answer.code == 1
    assert "web" in answer.error["hint"]


def test_a_second_up_changes_nothing_where_nothing_is_different(coexist, running, tmp_path):
    answer = coexist("up", tmp_path / "deploy.yaml", "--json")
    assert (answer.code, answer.document["changes"]["unchanged"]) == (0, ["web"])
    assert answer.document["services"][0]["pid"] == running["services"][0]["pid"]
    assert "unchanged: web" in answer.err


def test_stopping_the_last_service_ends_nothing_it_can_be_started_again(coexist, running):
    assert coexist("stop", "web").code == 0
    waits_until(lambda: coexist("status", "--json").document["services"][0]["state"] == "STOPPED")
    assert coexist("restart", "web").code == 0
    waits_until(lambda: coexist("status", "--json").document["services"][0]["state"] == "SERVING")


def waits_until(holds):
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
