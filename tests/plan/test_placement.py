from __future__ import annotations

import pytest

from tests.plan.brute_force import best, cost_of_plan
from tests.plan.properties import OF_A_PLAN, Subject
from tests.plan.random_cases import random_case
from tests.plan.support import answer

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


@pytest.mark.parametrize("start", range(0, SEEDS, 50))
def test_the_search_refuses_only_what_brute_force_refuses_and_never_ranks_worse(start: int):
    for seed in range(start, start + 50):
        case = random_case(seed)
        least, found = best(case), answer(case)
        assert ("error" in found) == (least is None), (seed, found.get("error"))
        if least is not None:
            assert cost_of_plan(case, found) == least, seed
            subject = Subject(case, found)
            assert [name for name in ALWAYS if not OF_A_PLAN[name](subject)] == [], seed
