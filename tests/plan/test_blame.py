from __future__ import annotations

from typing import Any

import pytest

from tests.plan.machines import deployment, gpu, host, shared, slices
from toolkit.errors import ToolkitError
from toolkit.host.model import Holder
from toolkit.plan import make
from toolkit.units import GIB


def refused(machine: Any, **services: dict[str, Any]) -> tuple[str, int, list[str]]:
    with pytest.raises(ToolkitError) as caught:
        make(deployment(**services), machine)
    found = caught.value.details
    assert caught.value.code == "does_not_fit"
    return found["resource"], found["needed"] - found["available"], found["services"]


def alone(memory: str = "1GiB", **keys: Any) -> dict[str, Any]:
    return {"gpus": 1, "gpu_memory": memory, **keys}


def test_three_loners_on_two_gpus_lack_one_gpu():
    assert refused(host(gpu(0), gpu(1)), a=alone(), b=alone(), c=alone()) == ("gpus", 1, ["a", "b", "c"])


def test_a_sharer_of_unknown_need_lacks_a_gpu_of_its_own():
    sharer = {"gpus": {"count": 1, "share": True}}
    assert refused(host(gpu(0)), a=sharer, b=shared("1GiB"))[:2] == ("gpus", 1)


def test_a_service_that_wants_more_gpus_than_there_are_lacks_the_difference():
    assert refused(host(gpu(0), gpu(1)), a={"gpus": 8})[:2] == ("gpus", 6)


def test_two_that_name_one_gpu_and_do_not_share_are_both_named():
    machine = host(gpu(0), gpu(1))
    assert refused(machine, a={"gpus": [0]}, b={"gpus": [0]}, c={"cpus": 1}) == ("gpus", 1, ["a", "b"])


def test_budgets_and_contexts_over_the_memory_lack_the_sum_of_both():
    assert refused(host(gpu(0, memory_gib=24)), a=shared("16GiB"), b=shared("8GiB")) == ("gpu_memory", 1536, ["a", "b"])


def test_memory_that_others_hold_is_missing_and_they_are_named():
    holders = (Holder(pid=42, name="python", used_bytes=10 * GIB),)
    machine = host(gpu(0, memory_gib=24, used_bytes=10 * GIB, holders=holders))
    assert refused(machine, a=alone("16GiB")) == ("gpu_memory", 2 * 1024 + 768, ["a"])
    with pytest.raises(ToolkitError, match=r"python \(pid 42\) holds 10.0 GiB"):
        make(deployment(a=alone("16GiB")), machine)


def test_the_shortage_is_the_least_with_which_all_would_fit():
    machine = host(gpu(0, memory_gib=24), gpu(1, memory_gib=24))
    found = refused(machine, a=shared("20GiB"), b=shared("14GiB"), c=shared("11GiB"), d=shared("2GiB"))
    assert found == ("gpu_memory", (14 + 11 - 24) * 1024 + 2 * 768, ["b", "c"])


def test_unknown_need_on_a_full_gpu_lacks_room_for_its_context():
    assert refused(host(gpu(0, memory_gib=24, used_bytes=24 * GIB)), a={"gpus": 1}) == ("gpu_memory", 768, ["a"])


def test_a_group_larger_than_any_clique_lacks_links():
    machine = host(*(gpu(i) for i in range(4)), links="01 02 12")
    assert refused(machine, a={"gpus": 4, "tp_size": 4, "nvlink": "required"}) == ("nvlink", 1, ["a"])


def test_the_second_group_on_the_only_pair_lacks_links():
    machine = host(*(gpu(i) for i in range(4)), links="01")
    pair = {"gpus": 2, "tp_size": 2, "nvlink": "required"}
    assert refused(machine, a=pair, b=pair)[:2] == ("nvlink", 1)


def test_linked_gpus_that_are_full_lack_memory_and_not_links():
    machine = host(gpu(0, used_bytes=70 * GIB), gpu(1), gpu(2), gpu(3), links="01")
    pair = {"gpus": 2, "tp_size": 2, "nvlink": "required", "gpu_memory": "60GiB"}
    assert refused(machine, a=pair) == ("gpu_memory", 50 * 1024 + 768, ["a"])


@pytest.mark.parametrize("size", [2, 4])
def test_a_group_on_slices_lacks_all_devices_but_one(size: int):
    machine = host(gpu(0, mig=slices(4)))
    assert refused(machine, a={"gpus": size, "tp_size": size}) == ("mig", size - 1, ["a"])


def test_a_group_of_unlike_models_lacks_gpus_of_one_model():
    machine = host(gpu(0), gpu(1), gpu(2, name="A100"))
    assert refused(machine, a={"gpus": 3, "tp_size": 3}) == ("gpus", 1, ["a"])


def test_groups_are_never_put_on_slices_while_whole_gpus_are_left():
    machine = host(gpu(0, mig=slices(2)), gpu(1), gpu(2))
    plan = make(deployment(a={"gpus": 2, "tp_size": 2}, b=alone()), machine)
    assert {s.name: [d.index for d in s.devices] for s in plan.services} == {"a": [1, 2], "b": [0]}
