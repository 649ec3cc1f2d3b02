from __future__ import annotations

from toolkit.diagnose import Device, Holder
from toolkit.diagnose.context import context_of

MIB = 1024**2
PLAN = {
    "services": [{"name": "llm", "gpus": [{"uuid": "GPU-1", "index": 1, "budget_mib": 100}]}],
    "ledger": [
        {"gpu": "GPU-0", "total_mib": 1000, "reserved": [{"service": "other", "mib": 7, "for": "x"}]},
        {"gpu": "GPU-1", "total_mib": 2000, "reserved": [{"service": "llm", "mib": 100}, {"service": None, "mib": 50}]},
    ],
}


def test_a_plan_tells_budget_total_and_holders_of_the_services_own_gpus() -> None:
    found = context_of("llm", PLAN)
    assert (found.budget_bytes, found.total_bytes, found.assigned) == (100 * MIB, 2000 * MIB, (1,))
    assert found.holders == (Holder("llm", 100 * MIB), Holder(None, 50 * MIB))


def test_a_host_tells_what_each_gpu_can_compute() -> None:
    host = {"gpus": [{"index": 0, "uuid": "GPU-0", "compute_capability": "8.6"}]}
    assert context_of("llm", None, host).devices == (Device(0, "GPU-0", "8.6"),)


def test_an_unknown_service_has_an_empty_context() -> None:
    assert context_of("nobody", PLAN).budget_bytes is None
    assert context_of(None).holders == ()
