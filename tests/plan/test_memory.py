from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.machines import CONTEXT, deployment, gpu, host, shared
from toolkit.errors import ToolkitError
from toolkit.plan import Need, Plan, make
from toolkit.units import GIB, MIB

SMALL = Need(
    weights_bytes=10 * GIB,
    kv_bytes_per_token=128 * 1024,
    activation_bytes=GIB,
    graph_pool_bytes=0,
    max_seq_len=8192,
    tokens_per_block=32,
    max_batch_size=16,
)


def budgets(plan: Plan) -> dict[str, int | None]:
    return {s.name: s.devices[0].budget_bytes for s in plan.services}


def test_a_written_budget_is_reserved_with_its_context():
    line = make(deployment(a={"gpus": 1, "gpu_memory": "60GiB"}), host(gpu(0))).ledger[0]
    assert [(r.purpose, r.size_bytes) for r in line.reserved] == [("budget", 60 * GIB), ("CUDA context", CONTEXT)]
    assert line.free_bytes == 20 * GIB - CONTEXT


def test_an_unknown_context_is_assumed_with_a_note():
    plan = make(deployment(a={"gpus": 1, "gpu_memory": "1GiB"}), host(gpu(0), context_bytes=None))
    assert plan.ledger[0].reserved[-1].size_bytes == 768 * MIB
    assert any("768 MiB are assumed" in note for note in plan.notes)


def test_a_derived_budget_grows_to_all_requests_of_full_length_and_no_further():
    plan = make(deployment(a={"gpus": 1}), host(gpu(0)), {"a": SMALL})
    assert budgets(plan)["a"] == 11 * GIB + 16 * GIB  # 1 GiB of KV cache for a request
    assert plan.services[0].kv is not None
    assert plan.services[0].kv.full_length_requests == 16
    assert any("16 requests of 8192 tokens fit" in note for note in plan.services[0].notes)


def test_a_derived_budget_that_cannot_grow_so_far_takes_what_there_is():
    plan = make(deployment(a={"gpus": 1}), host(gpu(0, memory_gib=20)), {"a": SMALL})
    assert budgets(plan)["a"] == 20 * GIB - CONTEXT
    assert plan.services[0].kv is not None
    assert plan.services[0].kv.full_length_requests == 8


def test_sharers_that_can_grow_divide_what_is_left_evenly():
    both = deployment(a={"gpus": {"count": 1, "share": True}}, b={"gpus": {"count": 1, "share": True}})
    found = budgets(make(both, host(gpu(0, memory_gib=40)), {"a": SMALL, "b": SMALL}))
    assert found["a"] == found["b"]
    assert sum(found.values()) == 40 * GIB - 2 * CONTEXT


def test_a_derived_budget_is_written_down_by_purpose():
    reserved = make(deployment(a={"gpus": 1}), host(gpu(0)), {"a": SMALL}).ledger[0].reserved
    assert {r.purpose: r.size_bytes // GIB for r in reserved} == {
        "weights": 10, "activations": 1, "KV cache": 16, "CUDA context": 0,
    }  # fmt: skip


def test_a_budget_too_small_for_one_request_is_refused():
    with pytest.raises(ToolkitError) as caught:
        make(deployment(a={"gpus": 1, "gpu_memory": "11GiB"}), host(gpu(0)), {"a": SMALL})
    assert "too little for one request" in caught.value.what
    assert caught.value.details["needed"] - caught.value.details["available"] == 1024


@pytest.mark.parametrize("part", ["weights_bytes", "graph_pool_bytes", "max_seq_len", "max_batch_size"])
def test_a_need_with_an_unknown_part_is_unknown_and_alone(part: str):
    plan = make(deployment(a={"gpus": 1}), host(gpu(0)), {"a": replace(SMALL, **{part: None})})
    assert budgets(plan)["a"] is None
    assert any("alone on its devices" in note for note in plan.services[0].notes)


def test_a_device_of_unknown_memory_takes_one_service_and_has_no_ledger_line():
    blind = host(gpu(0, memory_bytes=None, used_bytes=None))
    plan = make(deployment(a=shared("4GiB")), blind)
    assert plan.ledger == ()
    assert any("memory of GPU 0 is unknown" in note for note in plan.notes)
    with pytest.raises(ToolkitError):
        make(deployment(a=shared("4GiB"), b=shared("4GiB")), blind)


def test_fractions_of_a_mib_never_overdraw_a_device():
    plan = make(deployment(a=shared("1000000001B"), b=shared("1000000001B")), host(gpu(0, memory_bytes=4 * GIB + 77)))
    assert all(r.size_bytes % MIB == 0 for r in plan.ledger[0].reserved)
    assert plan.ledger[0].free_bytes >= 0
