from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.machines import deployment, gpu, host
from toolkit.errors import ToolkitError
from toolkit.host.model import ContainerLimits, Core, Host
from toolkit.plan import Plan, make


def cpus(plan: Plan) -> dict[str, tuple[int, ...]]:
    return {service.name: service.cpus for service in plan.services}


def notes(plan: Plan, name: str) -> str:
    return " | ".join(next(service.notes for service in plan.services if service.name == name))


def refusal(*args, **kwargs) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        make(*args, **kwargs)
    return caught.value


def test_a_number_gets_whole_cores_with_both_threads():
    assert cpus(make(deployment(a={"cpus": 3}), host(cores=4, smt=True)))["a"] == (0, 1, 4, 5)


def test_a_list_is_exact_and_others_keep_off_its_cores():
    plan = make(deployment(a={"cpus": "0"}, b={"cpus": 2}), host(cores=4, smt=True))
    assert cpus(plan) == {"a": (0,), "b": (1, 5)}


def test_two_lists_may_split_a_core_because_they_say_so():
    assert cpus(make(deployment(a={"cpus": "0"}, b={"cpus": "4"}), host(cores=4, smt=True))) == {"a": (0,), "b": (4,)}


@pytest.mark.parametrize(("a", "b", "short"), [("0-3", "3-4", 1), ("0-9", "0", 2)])
def test_lists_that_overlap_or_name_cpus_that_are_not_allowed_are_refused(a, b, short):
    error = refusal(deployment(a={"cpus": a}, b={"cpus": b}), host(cores=8))
    assert error.details["resource"] == "cpus"
    assert error.details["needed"] - error.details["available"] == short


def test_every_allowed_cpu_can_be_given_away():
    assert cpus(make(deployment(a={"cpus": 4}), host(cores=4)))["a"] == (0, 1, 2, 3)


def test_too_many_cpus_are_refused_with_the_difference():
    error = refusal(deployment(a={"cpus": 10}, b={"cpus": 9}), host(cores=16))
    assert (error.details["needed"], error.details["available"]) == (19, 16)
    assert error.details["services"] == ["a", "b"]


def test_a_core_is_split_only_where_whole_ones_do_not_suffice_and_a_note_says_so():
    plan = make(deployment(a={"cpus": 3}, b={"cpus": 3}, c={"cpus": 2}), host(cores=4, smt=True))
    assert cpus(plan) == {"a": (0, 1, 4), "b": (2, 5, 6), "c": (3, 7)}
    assert ["too few whole cores" in notes(plan, name) for name in "abc"] == [True, True, False]


def test_an_auto_gets_the_thread_that_a_number_leaves():
    assert cpus(make(deployment(a={"cpus": 1}, b={}), host(cores=1, smt=True))) == {"a": (0,), "b": (1,)}


def test_the_other_thread_of_a_named_cpu_is_given_only_where_nothing_else_is_left():
    machine = host(cores=2, smt=True)
    assert cpus(make(deployment(a={"cpus": "0"}, b={"cpus": 2}), machine))["b"] == (1, 3)
    plan = make(deployment(a={"cpus": "0"}, b={"cpus": 3}), machine)
    assert cpus(plan)["b"] == (1, 2, 3)
    assert "too few whole cores" in notes(plan, "a")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 6), st.booleans())
def test_numbers_are_placed_exactly_when_their_sum_is_allowed(numbers, cores, smt):
    machine = host(cores=cores, smt=smt)
    wanted = deployment(**{f"s{i}": {"cpus": n} for i, n in enumerate(numbers)})
    free = len(machine.cpus_allowed)
    if sum(numbers) > free:
        error = refusal(wanted, machine)
        assert (error.details["needed"], error.details["available"]) == (sum(numbers), free)
        return
    given_cpus = cpus(make(wanted, machine))
    assert all(len(given_cpus[f"s{i}"]) >= n for i, n in enumerate(numbers))
    assert sum(map(len, given_cpus.values())) == len(set().union(*given_cpus.values()))


def test_autos_divide_what_numbers_leave():
    plan = make(deployment(a={"cpus": 4}, b={}, c={}), host(cores=16))
    assert [len(cpus(plan)[name]) for name in "abc"] == [4, 6, 6]
    assert not any(service.cpus_shared for service in plan.services)


def test_an_auto_stays_near_its_gpu_and_one_without_a_gpu_keeps_away():
    plan = make(deployment(llm={"gpus": 1}, web={}), host(gpu(0, node=1), nodes=2, cores=4))
    assert cpus(plan) == {"llm": (4, 5, 6, 7), "web": (0, 1, 2, 3)}


def test_with_fewer_cores_than_services_autos_share_with_a_note():
    plan = make(deployment(a={}, b={}, c={"cpus": 1}), host(cores=2))
    assert cpus(plan) == {"a": (1,), "b": (1,), "c": (0,)}
    assert [s.cpus_shared for s in sorted(plan.services, key=lambda s: s.name)] == [True, True, False]
    assert "fewer cores than services" in notes(plan, "a")


def test_an_auto_is_refused_when_numbers_take_everything():
    error = refusal(deployment(a={}, b={"cpus": 2}), host(cores=2))
    assert (error.details["resource"], error.details["needed"], error.details["available"]) == ("cpus", 3, 2)


def test_the_quota_of_the_cgroup_bounds_numbers_and_autos():
    small = host(cores=16, limits=ContainerLimits(cpu_quota=4.5))
    assert refusal(deployment(a={"cpus": 5}), small).details["available"] == 4
    plan = make(deployment(a={"cpus": 2}, b={}), small)
    assert [len(cpus(plan)[name]) for name in "ab"] == [2, 2]


def test_cpus_outside_the_cpuset_are_never_given():
    assert set(cpus(make(deployment(a={}), host(cores=8, cpus_allowed=(2, 3, 5))))["a"]) == {2, 3, 5}


def test_cores_too_far_away_are_counted_in_a_note():
    plan = make(deployment(a={"gpus": 1, "cpus": 6}), host(gpu(0, node=0), nodes=2, cores=4))
    assert cpus(plan)["a"] == (0, 1, 2, 3, 4, 5)
    assert "2 cores of it are not near its GPUs" in notes(plan, "a")


def test_the_gpu_is_chosen_where_cores_are_left():
    two = host(gpu(0, node=0), gpu(1, node=1), nodes=2, cores=4)
    plan = make(deployment(a={"gpus": 1, "cpus": 3}, b={"cpus": "0-2"}), two)
    assert next(s for s in plan.services if s.name == "a").devices[0].index == 1


def test_a_group_over_two_nodes_gets_cores_near_each_gpu():
    two = host(gpu(0, node=0), gpu(1, node=1), nodes=2, cores=4)
    assert cpus(make(deployment(a={"gpus": 2, "tp_size": 2, "cpus": 4}), two))["a"] == (0, 1, 4, 5)


def test_one_cpu_for_two_gpus_becomes_one_near_each_where_cores_are_left():
    two = host(gpu(0, node=0), gpu(1, node=1), nodes=2, cores=4)
    assert cpus(make(deployment(a={"gpus": 2, "cpus": 1}), two))["a"] == (0, 4)


def test_cores_of_unlike_width_are_packed_without_waste():
    hybrid = Host(cores=(Core(cpus=(0, 1)), Core(cpus=(2,)), Core(cpus=(3,))), cpus_allowed=(0, 1, 2, 3))
    plan = make(deployment(a={"cpus": 1}, b={"cpus": 1}, c={"cpus": 2}), hybrid)
    assert cpus(plan)["c"] == (0, 1)


def test_cores_of_one_cache_group_are_preferred_where_they_suffice():
    cores = tuple(Core(cpus=(c,), cache_group=c // 4) for c in range(12))
    plan = make(deployment(a={"cpus": "0-1"}, b={"cpus": 4}), Host(cores=cores, cpus_allowed=tuple(range(12))))
    assert cpus(plan)["b"] == (4, 5, 6, 7)
