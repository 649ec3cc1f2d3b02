"""``up`` on a deployment that runs: real supervisors on tiny servers, asked from a second command line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.deployments import Node, until
from tests.ports import free_ports
from toolkit.cli.again import difference

ALLOWED = sorted(os.sched_getaffinity(0))


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.end()


def pids(status):
    return {service["name"]: service["pid"] for service in status["services"]}


def test_only_what_changed_is_restarted_and_the_difference_is_shown(node):
    one, two, three = free_ports(3)
    first, before = node.up(node.deployment("demo", one, two))
    assert before["changes"] is None
    changed = node.deployment("demo", one, two, three, env={"WHO": "new"})
    code, after = node.run("up", changed)
    assert code == 0
    assert after["changes"] == {
        "added": ["web2"], "removed": [], "changed": {"web": ["env"]}, "applied": {}, "started": [],
        "unchanged": ["web1"],
    }  # fmt: skip
    assert after["ready"]
    assert first.poll() is None
    assert pids(after)["web1"] == pids(before)["web1"]
    assert pids(after)["web"] != pids(before)["web"]
    until(lambda: sorted(grant["service"] for grant in node.grants()) == ["web", "web1", "web2"])
    code, again = node.run("up", node.deployment("demo", one, two, env={"WHO": "new"}), "--detach")
    assert (code, again["changes"]["removed"], again["changes"]["changed"]) == (0, ["web2"], {})
    assert pids(again)["web"] == pids(after)["web"]
    until(lambda: sorted(grant["service"] for grant in node.grants()) == ["web", "web1"])
    code, refused = node.run("up", _with_own_cpu(node.deployment("demo", one, two, three, env={"WHO": "new"}), "web2"))
    assert (code, refused["error"]["resource"]) == (1, "cpus")
    assert "service 'web', which stays as it is" in refused["error"]["what"]
    assert "'coexist down', then 'up' plans all anew" in refused["error"]["hint"]
    assert all(Path(f"/proc/{pid}").exists() for pid in (pids(again)["web"], pids(again)["web1"]))
    assert sorted(grant["service"] for grant in node.grants()) == ["web", "web1"]
    code, refused = node.run("up", changed, "--exit-when-ready")
    assert (code, refused["error"]["code"]) == (1, "already_running")


def _with_own_cpu(file, name):
    document = json.loads(file.read_text())
    document["services"][name]["cpus"] = 1
    file.write_text(json.dumps(document))
    return file


def test_a_killed_supervisor_is_followed_by_one_that_keeps_what_serves(node):
    one, two = free_ports(2)
    file = node.deployment("demo", one, two)
    document = json.loads(file.read_text()) | {"on_supervisor_death": "keep"}
    file.write_text(json.dumps(document))
    process, before = node.up(file)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: len(node.grants()) == 2)
    other = node.run("up", node.deployment("other", one), "--exit-when-ready")
    assert (other[0], other[1]["error"]["resource"]) == (1, "port"), "what is kept is granted to nobody else"
    document["services"]["web1"]["env"] = {"A": "1"}
    file.write_text(json.dumps(document))
    process, after = node.up(file)
    assert after["ready"]
    assert pids(after)["web"] == pids(before)["web"]
    assert pids(after)["web1"] != pids(before)["web1"]
    assert {grant["owner"]["pid"] for grant in node.grants()} == {process.pid}
    until(lambda: sorted(grant["service"] for grant in node.grants()) == ["web", "web1"])


def test_the_difference_is_told_in_words():
    changes = {
        "added": ["a"], "removed": ["b"], "changed": {"c": ["argv", "env"]}, "applied": {"d": ["grace"]},
        "started": ["e"], "unchanged": ["f", "g"],
    }  # fmt: skip
    assert list(difference(changes)) == [
        "a: new",
        "b: removed",
        "c: restarts (argv, env)",
        "d: runs on with other grace",
        "e: was at rest, starts again",
        "unchanged: f, g",
    ]
