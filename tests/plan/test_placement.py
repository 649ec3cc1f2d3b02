from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.plan.brute_force import best, cost_of_plan, whole_cores_suffice
from tests.plan.machines import deployment, gpu, host, shared
from tests.plan.properties import OF_A_PLAN, Subject
from tests.plan.random_cases import random_case
from tests.plan.support import answer
from toolkit.host.model import GpuLink
from toolkit.plan import Plan, make

SEEDS = 500
ALWAYS = (
    "all_services_placed",
    "gpus_counted",
    "gpus_exclusive",
    "gpu_memory_fits",
    "budgets_cover_need",
    "unknown_need_alone",
    "ledger_adds_up",
    "sharers_ordered",
    "cpus_counted",
    "cpus_allowed",
    "cpus_disjoint",
    "cores_not_shared",
    "tp_on_nvlink",
    "tp_one_model",
    "membind_has_cpus",
    "membind_follows_cpus",
    "membind_unknown_none",
    "numa_nodes_have_cpus",
    "unknown_is_said",
)


def indices(plan: Plan) -> dict[str, list[int]]:
    return {service.name: [device.index for device in service.devices] for service in plan.services}


@pytest.mark.parametrize("start", range(0, SEEDS, 50))
def test_the_search_refuses_only_what_brute_force_refuses_and_never_ranks_worse(start: int):
    for seed in range(start, start + 50):
        case = random_case(seed)
        least, found = best(case), answer(case)
        assert ("error" in found) == (least is None), (seed, found.get("error"))
        if least is not None:
            whole = whole_cores_suffice(case)
            assert not whole or cost_of_plan(case, found) == least, seed
            subject, always = Subject(case, found), {*ALWAYS} - {*(() if whole else ("cores_not_shared",))}
            assert [name for name in always if not OF_A_PLAN[name](subject)] == [], seed


def test_the_missing_memory_is_exactly_what_would_do():
    short = 0
    for seed in range(SEEDS):
        case = random_case(seed)
        error = answer(case).get("error", {})
        if error.get("resource") == "gpu_memory":
            missing, short = error["needed"] - error["available"], short + 1
            enough = answer(_enlarged(case, missing))
            assert enough.get("error", {}).get("resource") != "gpu_memory", seed
            assert answer(_enlarged(case, missing - 1))["error"]["resource"] == "gpu_memory", seed
    assert short > 50


def _enlarged(case: dict[str, Any], mib: int) -> dict[str, Any]:
    grown = copy.deepcopy(case)
    for gpu_of_case in grown["host"]["gpus"]:
        for entry in (gpu_of_case, *gpu_of_case.get("mig", ())):
            entry["memory_mib"] += mib
    return grown


def test_a_linked_group_over_two_nodes_goes_before_an_unlinked_one_on_one_node():
    machine = host(gpu(0, node=0), gpu(1, node=0), gpu(2, node=1), nodes=2, links="02")
    assert indices(make(deployment(a={"gpus": 2, "tp_size": 2}), machine)) == {"a": [0, 2]}


def test_among_unlinked_groups_the_nearest_nodes_and_then_the_nearest_switch_win():
    far = host(gpu(0, node=0), gpu(1, node=1), gpu(2, node=1), gpu(3, node=1), nodes=2)
    switch = far.model_copy(update={"links": (GpuLink(a=1, b=2, link="NODE"), GpuLink(a=2, b=3, link="PIX"))})
    assert indices(make(deployment(a={"gpus": 2, "tp_size": 2}), switch)) == {"a": [2, 3]}


def test_more_links_are_nearer_than_fewer():
    machine = host(*(gpu(i) for i in range(4)))
    links = (GpuLink(a=0, b=1, link="NV1"), GpuLink(a=0, b=2, link="NV2"), GpuLink(a=1, b=3, link="NV1"))
    machine = machine.model_copy(update={"links": links})
    assert indices(make(deployment(a={"gpus": 2, "tp_size": 2}), machine)) == {"a": [0, 2]}


def test_gpus_near_the_same_nodes_go_together_although_others_are_as_far():
    machine = host(gpu(0, numa_nodes=(0, 5)), gpu(1, numa_nodes=(0, 6)), gpu(2, numa_nodes=(0, 5)))
    assert indices(make(deployment(a={"gpus": 2, "tp_size": 2}), machine)) == {"a": [0, 2]}


def test_a_single_gpu_is_taken_where_it_breaks_no_linked_pair():
    machine = host(gpu(0), gpu(1), gpu(2, node=1), nodes=2, links="01")
    assert indices(make(deployment(a={"gpus": 1}), machine)) == {"a": [2]}


def test_a_service_of_unknown_need_gets_the_gpu_that_nobody_else_uses():
    machine = host(gpu(0, used_bytes=1 << 30), gpu(1))
    assert indices(make(deployment(a={"gpus": 1}), machine)) == {"a": [1]}


def test_sharers_are_put_together_so_that_gpus_stay_whole():
    plan = make(deployment(a=shared("10GiB"), b=shared("20GiB"), c=shared("30GiB")), host(gpu(0), gpu(1)))
    assert len({device.uuid for service in plan.services for device in service.devices}) == 1


def test_sixteen_gpus_are_planned_in_rings_of_neighbours():
    ring = tuple(GpuLink(a=i, b=(i + 1) % 16, link="NV4") for i in range(15))
    machine = host(*(gpu(i, node=i // 4) for i in range(16)), nodes=4).model_copy(update={"links": ring})
    groups = deployment(**{f"s{i}": {"gpus": 4, "tp_size": 4, "cpus": 4} for i in range(4)})
    found = indices(make(groups, machine)).values()
    assert sorted(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
