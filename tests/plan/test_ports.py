from __future__ import annotations

import pytest

from tests.plan.machines import deployment, host
from toolkit.errors import ToolkitError
from toolkit.plan import Grant, Plan, make


def ports(plan: Plan) -> dict[str, int]:
    return {service.name: service.port for service in plan.services}


def refusal(*args, **kwargs) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        make(*args, **kwargs)
    assert caught.value.details["resource"] == "port"
    assert caught.value.details["needed"] == caught.value.details["available"] + 1
    return caught.value


def test_missing_ports_are_counted_up_past_those_in_use():
    given = deployment(a={}, b={"port": 8002}, c={}, d={})
    plan = make(given, host(), ports_taken={8003: "nginx"}, grants=[Grant("other", ports=(8004,))])
    assert ports(plan) == {"a": 8001, "b": 8002, "c": 8005, "d": 8006}


def test_a_port_in_use_is_refused_with_its_owner():
    assert "taken by nginx" in refusal(deployment(a={"port": 80}), host(), ports_taken={80: "nginx"}).what


def test_a_port_asked_for_twice_is_refused_with_both_services():
    assert refusal(deployment(a={"port": 80}, b={"port": 80}), host()).details["services"] == ["b", "a"]


def test_one_port_on_two_addresses_is_no_conflict():
    two = deployment(a={"port": 80, "host": "127.0.0.1"}, b={"port": 80, "host": "127.0.0.2"})
    assert ports(make(two, host())) == {"a": 80, "b": 80}


def test_the_control_port_is_kept_free():
    assert ports(make(deployment(a={}).model_copy(update={"control_port": 8001}), host())) == {"a": 8002}
