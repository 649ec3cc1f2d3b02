"""Services that run and stay as they are, and the others planned around them. No machine is looked at."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.machines import CONTEXT, deployment, gpu, host, shared
from toolkit.assemble import beside, grants, kept
from toolkit.assemble.kept import Kept
from toolkit.assemble.paths import Paths
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.plan import make
from toolkit.plan.model import Plan
from toolkit.reserve import Grant, Owner
from toolkit.units import GIB

US = Owner.current("test")
PATHS = Paths({"a": Path("/usr/bin/python3")}, {}, {})


@dataclass(frozen=True)
class Ran:
    spec: dict[str, str]
    placed: dict[str, Any]


def held(plan: Plan, wanted: Deployment) -> list[Grant]:
    """What the plan's services were granted."""
    asked = grants.requests(plan, wanted, CONTEXT, {})
    return [
        Grant(id=name, owner=US, service=name, request=request, granted_at_s=0, deadline_s=None)
        for name, request in asked.items()
    ]


def staying(plan: Plan, *names: str) -> dict[str, Kept]:
    by_name = {service.name: service for service in plan.services}
    running = {name: Ran({}, kept.placed(plan, by_name[name])) for name in names}
    return kept.still_wanted(running, {name: {} for name in names})


def replanned(before: Deployment, after: Deployment, machine: Host, *names: str) -> tuple[Plan, Plan]:
    """The plan of ``before``, and that of ``after`` in which the named services stay."""
    plan = make(before, machine)
    again = beside.make(after, machine, {}, held=held(plan, before), ports_taken={}, staying=staying(plan, *names))
    return plan, again


def place_of(plan: Plan, name: str) -> tuple[Any, ...]:
    service = next(each for each in plan.services if each.name == name)
    return service.devices, service.cpus, service.port, service.memory_bind, service.wave


def test_what_stays_stays_where_it_is_and_the_new_one_goes_beside_it() -> None:
    before = deployment(b={"gpus": 1, "cpus": 2}, c={"gpus": 1, "cpus": 2})
    after = deployment(a={"gpus": 1, "cpus": 2}, b={"gpus": 1, "cpus": 2, "after": ["a"]}, c={"gpus": 1, "cpus": 2})
    plan, again = replanned(before, after, host(gpu(0), gpu(1), gpu(2), cores=8), "b", "c")
    assert [place_of(again, name) for name in "bc"] == [place_of(plan, name) for name in "bc"]
    new = next(each for each in again.services if each.name == "a")
    assert new.devices[0].uuid == "GPU-22-abc"
    assert {each.name: each.after for each in again.services} == {"a": (), "b": ("a",), "c": ()}
    assert not {*new.cpus} & {cpu for each in again.services if each.name != "a" for cpu in each.cpus}
    assert len({each.port for each in again.services}) == 3


def test_what_a_fresh_plan_would_move_is_not_moved_but_the_new_one_refused_with_what_is_in_the_way() -> None:
    machine = host(gpu(0, memory_gib=40), gpu(1, memory_gib=80), cores=8)
    before = deployment(small={"gpus": ["GPU-11-abc"], "cpus": 1})
    after = deployment(small={"gpus": 1, "cpus": 1}, large={"gpus": 1, "gpu_memory": "60GiB", "cpus": 1})
    assert {each.name: each.devices[0].index for each in make(after, machine).services} == {"small": 0, "large": 1}
    with pytest.raises(ToolkitError, match="GPU") as caught:
        replanned(before, after, machine, "small")
    assert "'small' run and stay where they are" in (caught.value.hint or "")
    assert caught.value.details["services"] == ["large"]


def test_on_a_shared_gpu_what_stays_has_its_share_and_the_ledger_names_it() -> None:
    before = deployment(a=shared("30GiB", cpus=1))
    after = deployment(a=shared("30GiB", cpus=1), b=shared("30GiB", cpus=1))
    _, again = replanned(before, after, host(gpu(0), cores=4), "a")
    (line,) = again.ledger
    assert {each.service for each in line.reserved if each.service} == {"a", "b"}
    assert line.free_bytes == 80 * GIB - 2 * (30 * GIB + CONTEXT)
    too_much = deployment(a=shared("30GiB", cpus=1), b=shared("60GiB", cpus=1))
    with pytest.raises(ToolkitError) as caught:
        replanned(before, too_much, host(gpu(0), cores=4), "a")
    assert (caught.value.details["resource"], caught.value.details["services"]) == ("gpu_memory", ["b"])


def test_cpus_that_an_auto_service_has_are_shared_with_autos_and_not_taken_from_it() -> None:
    before = deployment(a={"cpus": "auto"})
    machine = host(cores=4)
    plan, again = replanned(before, deployment(a={"cpus": "auto"}, b={"cpus": "auto"}), machine, "a")
    assert place_of(again, "a") == place_of(plan, "a")
    with pytest.raises(ToolkitError, match="service 'a', which stays as it is"):
        replanned(before, deployment(a={"cpus": "auto"}, b={"cpus": 1}), machine, "a")


def test_a_port_of_what_stays_is_given_to_nobody() -> None:
    before = deployment(a={"cpus": 1})
    _, again = replanned(before, deployment(a={"cpus": 1}, b={"cpus": 1}), host(cores=4), "a")
    assert [each.port for each in again.services] == [8001, 8002]
    with pytest.raises(ToolkitError) as caught:
        replanned(before, deployment(a={"cpus": 1}, b={"cpus": 1, "port": 8001}), host(cores=4), "a")
    assert caught.value.details["resource"] == "port"


def test_when_all_stay_nothing_is_planned() -> None:
    before = deployment(a={"gpus": 1, "cpus": 1})
    plan, again = replanned(before, before, host(gpu(0), cores=4), "a")
    assert (again.services, again.ledger) == (plan.services, plan.ledger)


def test_a_place_survives_being_written_down() -> None:
    plan = make(deployment(a=shared("30GiB", cpus=2)), host(gpu(0), cores=4))
    document = json.loads(json.dumps(kept.placed(plan, plan.services[0])))
    assert kept.still_wanted({"a": Ran({}, document)}, {"a": {}}) == {"a": Kept(plan.services[0], plan.ledger)}
    assert kept.still_wanted({"a": Ran({}, {"service": {"name": "a"}})}, {"a": {}}) == {}, "of another release"
    assert kept.still_wanted({"a": Ran({"argv": "1"}, document)}, {"a": {"argv": "2"}}) == {}
    assert kept.still_wanted({"a": Ran({"grace": "1"}, document)}, {"a": {"grace": "2"}}).keys() == {"a"}
    assert kept.still_wanted({"a": Ran({}, document)}, {}) == {}


def spec(**keys: Any) -> dict[str, str]:
    return kept.spec(deployment(a=keys), PATHS, {"llm": "f1"}, "a")


def test_a_spec_differs_by_the_key_that_differs_and_shows_no_value() -> None:
    one, two = spec(env={"HF_TOKEN": "hf_secret"}), spec(env={"HF_TOKEN": "hf_other"})
    assert {key for key in one if one[key] != two[key]} == {"env"}
    assert "secret" not in json.dumps(one)
    assert spec() == spec()


def test_a_rebuilt_engine_and_another_python_are_other_processes() -> None:
    wanted = deployment(a={"engine": "llm"})
    one = kept.spec(wanted, PATHS, {"llm": "f1"}, "a")
    rebuilt = kept.spec(wanted, PATHS, {"llm": "f2"}, "a")
    moved = kept.spec(wanted, Paths({"a": Path("/opt/python")}, {}, {}), {"llm": "f1"}, "a")
    assert {key for key in one if one[key] != rebuilt[key]} == {"engine"}
    assert {key for key in one if one[key] != moved[key]} == {"environment"}


SERVICES = st.dictionaries(
    st.sampled_from("abcd"),
    st.sampled_from([{"cpus": 1}, {"cpus": "auto"}, {"cpus": 2, "gpus": 1}, shared("20GiB", cpus=1)]),
    min_size=1,
)


@settings(max_examples=60, deadline=None)
@given(before=SERVICES, after=SERVICES)
def test_whatever_changes_what_stays_has_what_it_had_and_nothing_is_given_twice(before: Any, after: Any) -> None:
    machine = host(gpu(0), gpu(1), cores=8)
    same = [name for name in after if before.get(name) == after[name]]
    try:
        plan, again = replanned(deployment(**before), deployment(**after), machine, *same)
    except ToolkitError:
        return  # it does not fit: nothing is moved
    assert {each.name for each in again.services} == set(after)
    assert [place_of(again, name)[:3] for name in same] == [place_of(plan, name)[:3] for name in same]
    ports = [each.port for each in again.services]
    assert len(set(ports)) == len(ports)
    own = [cpu for each in again.services if after[each.name]["cpus"] != "auto" for cpu in each.cpus]
    assert len(set(own)) == len(own)
