from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.plan.machines import CONTEXT, deployment, gpu, host, shared
from toolkit import processes
from toolkit.assemble import grants
from toolkit.host.model import Holder, Host
from toolkit.plan import make
from toolkit.reserve import GpuClaim, Grant, Owner, Request
from toolkit.units import GIB

ME = Owner.current("mine")


def grant(owner: Owner = ME, **request) -> Grant:
    return Grant(id="1", owner=owner, service="web", request=Request(**request), granted_at_s=0, deadline_s=None)


def test_a_request_is_the_plans_part_with_a_context_on_each_gpu():
    wanted = deployment(a={**shared("4GiB"), "cpus": 2}, b={"cpus": "auto"})
    plan = make(wanted, host(gpu(0), cores=8))
    found = grants.requests(plan, wanted, CONTEXT, {"b": 3 * GIB})
    assert found["a"].gpus == (GpuClaim(uuid="GPU-00-abc", share=True, memory_bytes=4 * GIB + CONTEXT),)
    assert (found["a"].cpus_shared, found["b"].cpus_shared) == (False, True)
    assert (found["a"].numa_bytes, found["b"].numa_bytes) == ({}, {0: 3 * GIB})
    assert found["a"].ports == (plan.services[0].port,)


def test_main_memory_is_divided_among_the_nodes_it_is_bound_to():
    wanted = deployment(a={"cpus": 8})
    two = host(nodes=2, cores=4)
    plan = make(wanted, two)
    assert plan.services[0].memory_bind == (0, 1)
    assert grants.requests(plan, wanted, CONTEXT, {"a": 7})["a"].numa_bytes == {0: 4, 1: 4}


def test_what_a_gpu_has_to_grant_leaves_out_strangers_and_counts_deployments_once():
    mine, stranger = (Holder(pid=pid, name="python3", used_bytes=10 * GIB) for pid in (os.getpid(), 1))
    busy = host(gpu(0, used_bytes=20 * GIB, holders=(mine, stranger)))
    others = grants.held([grant(gpus=(GpuClaim(uuid="GPU-00-abc", share=True, memory_bytes=30 * GIB),))])
    assert grants.totals(busy, others).gpu_bytes == {"GPU-00-abc": 70 * GIB}
    assert grants.totals(busy, ()).gpu_bytes == {"GPU-00-abc": 60 * GIB}
    assert grants.totals(host(gpu(0, memory_bytes=None)), ()).gpu_bytes == {"GPU-00-abc": None}


@pytest.mark.parametrize(
    ("sizes", "memory", "found"),
    [
        ((8 * GIB, 8 * GIB), 16 * GIB, {0: 8 * GIB, 1: 8 * GIB}),
        ((8 * GIB, 8 * GIB), 64 * GIB, {0: None, 1: None}),
        ((8 * GIB,), 64 * GIB, {0: 64 * GIB}),
        ((8 * GIB,), 4 * GIB, {0: 4 * GIB}),
    ],
    ids=["two nodes", "memory grows later", "one node that grows", "a container's limit"],
)
def test_memory_that_grows_later_is_not_the_limit(sizes, memory, found):
    machine = host(nodes=len(sizes), cores=2)
    nodes = tuple(node.model_copy(update={"memory_bytes": s}) for node, s in zip(machine.numa, sizes, strict=True))
    grown: Host = machine.model_copy(update={"numa": nodes, "memory_bytes": memory})
    assert grants.totals(grown, ()).numa_bytes == found


def test_processes_of_an_owner_are_its_whole_tree():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= grants.processes_of(grant())
        child.kill()


def test_processes_of_another_pid_namespace_are_not_ours_to_name():
    far = Owner(pid=1, start_time=1, deployment="far", pid_namespace=7)
    assert grants.processes_of(grant().model_copy(update={"owner": far})) == frozenset()


def test_what_outlives_its_supervisor_is_known_by_the_process_that_keeps_the_grant():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        dead = Owner(pid=child.pid, start_time=1, deployment="mine")
        alive = Owner(pid=child.pid, start_time=processes.start_time(child.pid), deployment="mine")
        orphan = grant().model_copy(update={"owner": dead, "kept_by": alive})
        assert grants.processes_of(orphan) == {child.pid}
        assert grants.processes_of(orphan.model_copy(update={"kept_by": dead})) == frozenset()
        child.kill()


def test_a_deployments_own_grants_are_no_obstacle_but_its_processes_are_known():
    request = {"gpus": (GpuClaim(uuid="GPU-a"),), "cpus": (0,), "ports": (8001,)}
    (own,), (other,) = grants.held([grant(**request)], "mine"), grants.held([grant(**request)], "theirs")
    assert (own.cpus, own.devices, own.ports) == ((), {}, ())
    assert (other.cpus, other.devices, other.ports) == ((0,), {"GPU-a": None}, (8001,))
    assert os.getpid() in own.pids == other.pids


def test_cpus_that_give_way_are_held_only_when_asked_for():
    (firm,) = grants.held([grant(cpus=(0,), cpus_shared=True)])
    (eased,) = grants.held([grant(cpus=(0,), cpus_shared=True)], with_shared_cpus=False)
    (exclusive,) = grants.held([grant(cpus=(0,))], with_shared_cpus=False)
    assert (firm.cpus, eased.cpus, exclusive.cpus) == ((0,), (), (0,))
