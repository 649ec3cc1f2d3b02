from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.affinity.test_pin import DENY, NODE, run
from toolkit.affinity.policy import choose, probe_mempolicy_permitted
from toolkit.host.model import ContainerLimits, Core, Gpu, Host, NumaNode


def host(permitted: bool | None = True, mems: tuple[int, ...] | None = None, **more: Any) -> Host:
    nodes = (NumaNode(node=0, cpus=(0, 1)), NumaNode(node=1, cpus=(2, 3)))
    return Host(
        **{
            "cores": tuple(Core(cpus=(cpu,)) for cpu in range(4)),
            "cpus_allowed": (0, 1, 2, 3),
            "numa": nodes,
            "mems_allowed": mems,
            "limits": ContainerLimits(mempolicy_permitted=permitted),
            **more,
        }
    )


def test_memory_is_bound_where_the_plan_says_and_the_host_permits() -> None:
    policy = choose(host(), (1,), (1,))
    assert (policy.kind, policy.nodes, policy.spec) == ("bind", (1,), "bind:1")
    assert choose(host(), (0, 1), (0, 1)).spec == "bind:0-1"


def test_a_plan_that_does_not_bind_prefers() -> None:
    policy = choose(host(), (1,), None)
    assert policy.spec == "preferred:1"
    assert "does not bind" in policy.why


@pytest.mark.parametrize(
    "more",
    [
        {"numa": (NumaNode(node=0, cpus=(0, 1)), NumaNode(node=4, cpus=()))},
        {"gpus": (Gpu(index=0, uuid="GPU-a", name=None, memory_bytes=1, used_bytes=0, gpu_numa_id=4),)},
    ],
)
def test_nodes_are_never_restricted_where_a_gpus_memory_is_a_node(more: dict[str, Any]) -> None:
    policy = choose(host(**more), (0,), (0,))
    assert policy.spec == "preferred:0"
    assert "node 4 is memory only" in policy.why


def test_a_node_outside_the_containers_is_not_bound() -> None:
    assert choose(host(mems=(0,)), (0, 1), (0, 1)).spec == "preferred:0"
    assert choose(host(mems=(0,)), (1,), (1,)).spec == "none"


@pytest.mark.parametrize(
    ("machine", "nodes", "bind", "why"),
    [
        (host(permitted=False), (0,), (0,), "refuses set_mempolicy"),
        (host(permitted=None), (0,), (0,), "not known"),
        (host(), (), None, "is not known"),
        (host(numa=(NumaNode(node=0, cpus=(0, 1)),)), (0,), None, "one NUMA node"),
    ],
)
def test_otherwise_there_is_no_policy_and_a_reason(
    machine: Host, nodes: tuple[int, ...], bind: tuple[int, ...] | None, why: str
) -> None:
    policy = choose(machine, nodes, bind)
    assert (policy.kind, policy.nodes, policy.spec) == ("none", (), "none")
    assert why in policy.why


@given(
    nodes=st.sets(st.integers(0, 3)),
    bind=st.none() | st.sets(st.integers(0, 3)),
    mems=st.none() | st.sets(st.integers(0, 3)).map(tuple),
    permitted=st.sampled_from([True, False, None]),
    memory_only=st.booleans(),
)
def test_no_policy_asks_for_what_is_not_permitted(
    nodes: set[int], bind: set[int] | None, mems: tuple[int, ...] | None, permitted: bool | None, memory_only: bool
) -> None:
    numa = tuple(NumaNode(node=node, cpus=() if memory_only and node == 3 else (node,)) for node in range(4))
    policy = choose(host(permitted, mems, numa=numa), nodes, bind)
    assert policy.why
    assert (policy.kind == "none") == (policy.nodes == ())
    if policy.kind != "none":
        assert permitted
        assert set(policy.nodes) <= (nodes if bind is None else bind)
        assert mems is None or set(policy.nodes) <= set(mems)
    if policy.kind == "bind":
        assert not memory_only
        assert set(policy.nodes) == bind


def test_the_probe_says_what_the_wrapper_will_meet() -> None:
    assert probe_mempolicy_permitted() is (run("--mem", f"bind:{NODE}", "--check")[0] == 0)


def test_a_container_that_refuses_is_found() -> None:
    prefix = (sys.executable, str(DENY))
    if "no seccomp here" in run("--check", prefix=prefix)[2]:
        pytest.skip("no seccomp here")
    assert probe_mempolicy_permitted(prefix=prefix) is False


def test_a_kernel_without_numa_permits_nothing(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("Name:\tx\n")
    assert probe_mempolicy_permitted(status=tmp_path / "status") is False
