"""Several real deployments on one host: what one holds, no other is given."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.cli.deployments import Node, until
from tests.ports import free_ports
from toolkit.units import format_cpu_list

ALLOWED = sorted(os.sched_getaffinity(0))
RACERS = 4


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.end()


def test_of_racing_starts_one_gets_the_cores_and_the_others_are_told_by_whom_they_are_held(node):
    ports = free_ports(RACERS)
    files = [node.deployment(f"race-{n}", port, cpus=str(ALLOWED[0])) for n, port in enumerate(ports)]
    racers = [node.start("up", file) for file in files]
    first = [json.loads(racer.stdout.readline()) for racer in racers]
    winners = [document for document in first if document.get("ready")]
    losers = [document["error"] for document in first if "error" in document]
    assert (len(winners), len(losers)) == (1, RACERS - 1)
    assert {error["resource"] for error in losers} == {"cpus"}
    assert all(f"held by deployment '{winners[0]['deployment']}'" in error["what"] for error in losers)
    assert len(node.grants()) == 1
    node.end()
    assert node.grants() == []


def test_a_second_deployment_is_planned_around_the_first(node):
    one, two, three = free_ports(3)
    _, status = node.up(node.deployment("first", one, cpus="auto"))
    assert status["ready"]
    code, planned = node.run("plan", node.deployment("second", two, cpus="auto"))
    assert (code, planned["services"][0]["cpus"]) == (0, format_cpu_list(ALLOWED)), "autos share, as within one"
    assert any("with deployment 'first'" in note for note in planned["services"][0]["notes"])
    code, refused = node.run("plan", node.deployment("third", three, cpus=1))
    assert (code, refused["error"]["resource"], refused["error"]["available"]) == (1, "cpus", 0)
    assert f"deployment 'first' holds {format_cpu_list(ALLOWED)}" in refused["error"]["what"]
    code, refused = node.run("plan", node.deployment("fourth", one, cpus="auto"))
    assert (code, refused["error"]["resource"]) == (1, "port")


def test_a_deployment_that_runs_is_no_obstacle_to_its_own_plan(node):
    (port,) = free_ports(1)
    file = node.deployment("same", port, cpus=len(ALLOWED))
    assert node.up(file)[1]["ready"]
    code, planned = node.run("plan", file)
    assert (code, planned["services"][0]["port"]) == (0, port)


def test_two_deployments_share_cores_that_both_leave_to_coexist(node):
    one, two = free_ports(2)
    assert node.up(node.deployment("first", one))[1]["ready"]
    assert node.up(node.deployment("second", two))[1]["ready"]
    assert len(node.grants()) == 2
    code, _ = node.run("down", "--deployment", "first")
    assert code == 0
    assert [grant["owner"]["deployment"] for grant in node.grants()] == ["second"]


def test_a_stopped_service_gives_back_what_it_held_and_takes_it_again(node):
    one, two = free_ports(2)
    assert node.up(node.deployment("first", one, two))[1]["ready"]
    node.run("stop", "web")
    until(lambda: [grant["service"] for grant in node.grants()] == ["web1"])
    node.run("restart", "web")
    until(lambda: {grant["service"] for grant in node.grants()} == {"web", "web1"})


def test_the_reservation_of_a_killed_owner_is_free_for_the_next(node):
    one, two = free_ports(2)
    process, status = node.up(node.deployment("first", one, cpus=str(ALLOWED[0])))
    assert status["ready"]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    code, status = node.run("up", node.deployment("second", two, cpus=str(ALLOWED[0])), "--exit-when-ready")
    assert (code, status["ready"]) == (0, True)
