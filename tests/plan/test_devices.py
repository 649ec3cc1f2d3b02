from __future__ import annotations

import pytest

from tests.plan.machines import deployment, gpu, host, shared, slices
from toolkit.errors import ToolkitError
from toolkit.host.model import Holder
from toolkit.plan import Grant, Plan, make
from toolkit.units import GIB, MIB


def uuids(plan: Plan, name: str) -> list[str]:
    return [d.uuid for service in plan.services if service.name == name for d in service.devices]


def refusal(*args, **kwargs) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        make(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize("named", [1, "GPU-11-abc", "GPU-11", "gpu-11-ABC"])
def test_a_gpu_is_found_by_index_uuid_and_prefix(named):
    assert uuids(make(deployment(a={"gpus": [named]}), host(gpu(0), gpu(1))), "a") == ["GPU-11-abc"]


def test_a_whole_uuid_that_is_also_a_prefix_is_not_ambiguous():
    two = host(gpu(0, uuid="GPU-1"), gpu(1, uuid="GPU-12"))
    assert uuids(make(deployment(a={"gpus": "GPU-1"}), two), "a") == ["GPU-1"]


def test_an_index_that_does_not_exist_is_refused_with_those_that_do():
    error = refusal(deployment(a={"gpus": [9]}), host(*(gpu(i) for i in range(8))))
    assert error.what == "GPU 9 not found; this host has 0-7."
    assert (error.where, error.hint) == ("services.a.gpus", "See 'coexist host'.")
    assert error.details["resource"] == "gpus"


def test_an_unknown_uuid_is_refused_with_the_nearest_one():
    error = refusal(deployment(a={"gpus": "GPU-11-abd"}), host(gpu(0), gpu(1)))
    assert "nearest: GPU-11-abc" in error.what


def test_an_ambiguous_prefix_is_refused_with_all_it_could_be():
    error = refusal(deployment(a={"gpus": "GPU-"}), host(gpu(0), gpu(1)))
    assert "GPU-00-abc, GPU-11-abc" in error.what
    assert (error.details["needed"], error.details["available"]) == (1, 0)


def test_one_gpu_named_in_two_ways_is_refused():
    assert refusal(deployment(a={"gpus": [0, "GPU-00"]}), host(gpu(0), gpu(1))).code == "duplicate_gpu"


def test_a_gpu_cut_into_slices_is_refused_as_a_whole_and_its_slices_are_named():
    error = refusal(deployment(a={"gpus": [0]}), host(gpu(0, mig=slices(2))))
    assert error.details["resource"] == "mig"
    assert "MIG-0-def" in str(error.hint)


def test_a_mig_device_is_found_by_its_uuid_and_budgeted_by_its_own_memory():
    cut = host(gpu(0, mig=slices(2, memory_gib=20)))
    plan = make(deployment(a={"gpus": "MIG-1", "gpu_memory": "19GiB"}), cut)
    assert uuids(plan, "a") == ["MIG-1-def"]
    assert plan.ledger[0].total_bytes == 20 * GIB
    assert refusal(deployment(a={"gpus": "MIG-1", "gpu_memory": "20GiB"}), cut).details["resource"] == "gpu_memory"


def test_a_gpu_with_mig_on_and_no_slices_offers_nothing():
    assert refusal(deployment(a={"gpus": 1}), host(gpu(0, mig=()))).details["resource"] == "gpus"


def test_a_prohibited_gpu_is_never_used_and_says_why_when_named():
    two = host(gpu(0, compute_mode="Prohibited"), gpu(1))
    assert uuids(make(deployment(a={"gpus": 1}), two), "a") == ["GPU-11-abc"]
    assert "Prohibited" in refusal(deployment(a={"gpus": [0]}), two).what


def test_an_exclusive_process_gpu_is_not_shared():
    one = host(gpu(0, compute_mode="Exclusive_Process"))
    assert refusal(deployment(a=shared("1GiB"), b=shared("1GiB")), one).details["resource"] == "gpus"


def test_foreign_memory_is_in_the_ledger_with_its_holders_and_the_rest_is_an_unknown_holder():
    holders = (Holder(pid=7, name="Xorg", used_bytes=300 * MIB), Holder(pid=None, name=None, used_bytes=None))
    plan = make(deployment(a={"gpus": 1, "gpu_memory": "4GiB"}), host(gpu(0, used_bytes=1000 * MIB, holders=holders)))
    foreign = [(r.size_bytes // MIB, r.purpose) for r in plan.ledger[0].reserved if r.service is None]
    assert foreign == [(300, "Xorg (pid 7)"), (700, "unknown holder")]


def test_a_gpu_that_another_deployment_holds_is_out_of_reach_and_its_holder_is_named():
    held = [Grant("deployment 'other'", devices={"GPU-00-abc": None})]
    two = host(gpu(0), gpu(1))
    assert uuids(make(deployment(a={"gpus": 1}), two, grants=held), "a") == ["GPU-11-abc"]
    error = refusal(deployment(a={"gpus": 2}), two, grants=held)
    assert "held by deployment 'other'" in error.what
    assert (error.details["needed"], error.details["available"]) == (2, 1)


def test_a_part_that_another_deployment_holds_counts_once_and_leaves_no_room_for_a_loner():
    mine = Holder(pid=7, name="python", used_bytes=10 * GIB)
    busy = host(gpu(0, used_bytes=11 * GIB, holders=(mine,)))
    held = [Grant("other", devices={"GPU-00-abc": 20 * GIB}, pids=frozenset({7}))]
    plan = make(deployment(a=shared("48GiB")), busy, grants=held)
    assert [r.size_bytes // GIB for r in plan.ledger[0].reserved if r.service is None] == [1, 20]
    assert refusal(deployment(a={"gpus": 1, "gpu_memory": "48GiB"}), busy, grants=held).details["resource"] == "gpus"


def test_cpus_that_another_deployment_holds_are_not_given():
    plan = make(deployment(a={"cpus": 2}), host(cores=4), grants=[Grant("other", cpus=(0, 1))])
    assert plan.services[0].cpus == (2, 3)


def test_use_that_a_container_hides_is_a_deployments_up_to_its_grant_and_the_rest_an_unknown_holders():
    hidden = Holder(pid=None, name=None, used_bytes=25 * GIB)
    busy = host(gpu(0, used_bytes=25 * GIB, holders=(hidden,)))
    held = [Grant("other", devices={"GPU-00-abc": 20 * GIB}, pids=frozenset({7}))]
    line = make(deployment(a=shared("8GiB")), busy, grants=held).ledger[0]
    assert [(r.size_bytes // GIB, r.purpose) for r in line.reserved if r.service is None] == [
        (5, "unknown holder"),
        (20, "held by other"),
    ]


def test_the_drivers_own_memory_is_told_as_the_drivers():
    own = Holder(pid=None, name="driver", used_bytes=GIB)
    line = make(deployment(a={"gpus": 1, "gpu_memory": "4GiB"}), host(gpu(0, used_bytes=GIB, holders=(own,)))).ledger[0]
    assert [r.purpose for r in line.reserved if r.service is None] == ["the driver"]
