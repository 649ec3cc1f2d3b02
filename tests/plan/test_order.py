from __future__ import annotations

import pytest

from tests.plan.machines import deployment, gpu, host, shared
from toolkit.errors import ToolkitError
from toolkit.plan import Plan, make


def waves(plan: Plan) -> dict[str, int]:
    return {service.name: service.wave for service in plan.services}


def test_services_that_do_not_wait_start_together():
    assert waves(make(deployment(a={}, b={}), host())) == {"a": 0, "b": 0}


def test_sharers_of_a_gpu_start_one_by_one_in_file_order():
    plan = make(deployment(b=shared("1GiB"), a=shared("1GiB"), c={}), host(gpu(0)))
    assert waves(plan) == {"b": 0, "a": 1, "c": 0}
    assert [service.name for service in plan.services] == ["b", "c", "a"]


def test_after_turns_the_order_of_sharers_round():
    plan = make(deployment(a=shared("1GiB", after=["b"]), b=shared("1GiB")), host(gpu(0)))
    assert waves(plan) == {"b": 0, "a": 1}


def test_a_sharer_starts_behind_the_one_it_requires():
    plan = make(deployment(a=shared("1GiB", requires=["b"]), b=shared("1GiB")), host(gpu(0)))
    assert waves(plan) == {"b": 0, "a": 1}


def test_requires_alone_delays_nobody():
    assert waves(make(deployment(a={"requires": ["b"]}, b={}), host())) == {"a": 0, "b": 0}


def test_waves_add_up_along_a_chain():
    assert waves(make(deployment(c={"after": ["b"]}, b={"after": ["a"]}, a={}), host())) == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"after": ["b"]}, {"after": ["a"]}),
        ({"requires": ["b"]}, {"requires": ["a"]}),
        ({"after": ["b"]}, {"requires": ["a"]}),
    ],
)
def test_a_circle_is_refused_by_its_members(a, b):
    with pytest.raises(ToolkitError, match="a -> b -> a") as caught:
        make(deployment(a=a, b=b, c={"after": ["a"]}), host())
    assert caught.value.code == "cycle"


def test_a_name_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(ToolkitError, match="Nearest: 'embed'"):
        make(deployment(a={"after": ["embde"]}, embed={}), host())
