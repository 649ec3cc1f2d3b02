from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.reserve.decide import World, changed, decide, left_to, swept, without
from toolkit.reserve.model import GpuClaim, Grant, Owner, Refusal, Request, State, Totals
from toolkit.reserve.refusal import error
from toolkit.units import GIB

BOOT = "boot"
WORLD = World(BOOT, 100.0, lambda _owner: True)
EMPTY = State(boot_id=BOOT)
TOTALS = Totals(gpu_bytes={"GPU-a": 80 * GIB, "GPU-b": 80 * GIB}, numa_bytes={0: 64 * GIB})


def owner(number: int = 1) -> Owner:
    return Owner(pid=number, start_time=number * 10, deployment=f"node-{number}")


def wish(number: int = 1, service: str = "llm", deadline_s: float | None = 1000.0, **request: Any) -> Grant:
    name = f"{number}-{service}"
    held = Request(**request)
    return Grant(id=name, owner=owner(number), service=service, request=held, granted_at_s=100.0, deadline_s=deadline_s)


def granted(*wishes: Grant, state: State = EMPTY, totals: Totals = TOTALS, world: World = WORLD) -> State:
    decision = decide(state, wishes, totals, world)
    assert isinstance(decision, State), decision
    return decision


def refused(state: State, *wishes: Grant, totals: Totals = TOTALS) -> Refusal:
    decision = decide(state, wishes, totals, WORLD)
    assert isinstance(decision, Refusal), decision
    return decision


def gpu(uuid: str = "GPU-a", share: bool = False, gib: int | None = None) -> tuple[GpuClaim, ...]:
    return (GpuClaim(uuid=uuid, share=share, memory_bytes=None if gib is None else gib * GIB),)


@pytest.mark.parametrize(
    ("held", "wanted", "resource"),
    [
        ({"gpus": gpu()}, {"gpus": gpu()}, "gpus"),
        ({"gpus": gpu(share=True, gib=1)}, {"gpus": gpu()}, "gpus"),
        ({"gpus": gpu()}, {"gpus": gpu(share=True, gib=1)}, "gpus"),
        ({"gpus": gpu(share=True, gib=50)}, {"gpus": gpu(share=True, gib=31)}, "gpu_memory"),
        ({"gpus": gpu(share=True)}, {"gpus": gpu(share=True, gib=1)}, "gpus"),
        ({"gpus": gpu(share=True, gib=1)}, {"gpus": gpu(share=True)}, "gpus"),
        ({"cpus": (0, 1)}, {"cpus": (1, 2)}, "cpus"),
        ({"cpus": (0, 1), "cpus_shared": True}, {"cpus": (1, 2)}, "cpus"),
        ({"cpus": (0, 1)}, {"cpus": (1, 2), "cpus_shared": True}, "cpus"),
        ({"ports": (8001,)}, {"ports": (8001, 8002)}, "port"),
        ({"numa_bytes": {0: 60 * GIB}}, {"numa_bytes": {0: 5 * GIB}}, "numa_memory"),
    ],
)
def test_what_is_held_is_not_granted_again(held: dict[str, Any], wanted: dict[str, Any], resource: str) -> None:
    refusal = refused(granted(wish(1, **held)), wish(2, **wanted))
    assert [conflict.resource for conflict in refusal.conflicts] == [resource]
    assert [grant.owner for grant in refusal.conflicts[0].holders] == [owner(1)]


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        ({"gpus": gpu(share=True, gib=50)}, {"gpus": gpu(share=True, gib=30)}),
        ({"gpus": gpu("GPU-a")}, {"gpus": gpu("GPU-b")}),
        ({"cpus": (0, 1), "cpus_shared": True}, {"cpus": (0, 1), "cpus_shared": True}),
        ({"cpus": (0, 1)}, {"cpus": (2, 3)}),
        ({"ports": (8001,)}, {"ports": (8002,)}),
        ({"numa_bytes": {0: 60 * GIB}}, {"numa_bytes": {0: 4 * GIB}}),
        ({"numa_bytes": {7: 60 * GIB}}, {"numa_bytes": {7: 60 * GIB}}),  # node of unknown size
        ({"gpus": gpu("MIG-x", True, 90)}, {"gpus": gpu("MIG-x", True, 90)}),  # device of unknown size
    ],
)
def test_what_fits_is_granted(held: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert len(granted(wish(2, **wanted), state=granted(wish(1, **held))).grants) == 2


def test_unknown_needs_on_one_gpu_are_for_the_planner_of_one_deployment_to_judge() -> None:
    first = granted(wish(1, "llm", gpus=gpu(share=True)))
    assert len(granted(wish(1, "embed", gpus=gpu(share=True, gib=1)), state=first).grants) == 2


def test_more_than_a_gpu_has_left_by_foreign_processes_is_refused_with_no_holder() -> None:
    totals = Totals(gpu_bytes={"GPU-a": 10 * GIB})
    refusal = refused(EMPTY, wish(gpus=gpu(gib=11)), totals=totals)
    conflict = refusal.conflicts[0]
    assert (conflict.resource, conflict.needed, conflict.available) == ("gpu_memory", 11 * GIB, 10 * GIB)
    assert conflict.holders == ()


def test_all_services_are_granted_or_none() -> None:
    state = granted(wish(1, cpus=(5,)))
    refusal = refused(state, wish(2, "a", cpus=(1,)), wish(2, "b", cpus=(5,)))
    assert refusal.service == "b"


def test_services_of_one_wish_cannot_take_the_same_thing() -> None:
    assert refused(EMPTY, wish(2, "a", ports=(1,)), wish(2, "b", ports=(1,))).service == "b"


def test_every_conflict_of_a_service_is_named_at_once() -> None:
    state = granted(wish(1, cpus=(0,), ports=(8001,), gpus=gpu()))
    refusal = refused(state, wish(2, cpus=(0,), ports=(8001,), gpus=gpu()))
    assert [conflict.resource for conflict in refusal.conflicts] == ["gpus", "cpus", "port"]


def test_grants_of_a_dead_owner_are_dropped() -> None:
    state = granted(wish(1, cpus=(0,)), wish(2, cpus=(1,)))
    world = World(BOOT, 100.0, lambda one: one != owner(1))
    assert [grant.owner for grant in granted(wish(3, cpus=(0,)), state=state, world=world).grants] == [
        owner(2),
        owner(3),
    ]


def test_grants_of_another_boot_are_dropped() -> None:
    state = granted(wish(1, cpus=(0,)))
    assert swept(state, World("next", 1.0, lambda _owner: True)) == State(boot_id="next")


def test_an_attempt_that_never_reached_preload_loses_its_grant_at_the_deadline() -> None:
    state = granted(wish(1, cpus=(0,), deadline_s=200.0))
    assert swept(state, World(BOOT, 199.9, WORLD.alive)) == state
    assert swept(state, World(BOOT, 200.0, WORLD.alive)) == EMPTY
    preloaded = changed(state, ["1-llm"], deadline_s=None)
    assert swept(preloaded, World(BOOT, 1e9, WORLD.alive)) == preloaded


def test_released_grants_are_gone_and_others_stay() -> None:
    state = granted(wish(1, cpus=(0,)), wish(2, cpus=(1,)))
    assert [grant.id for grant in without(state, ["1-llm", "unknown"]).grants] == ["2-llm"]


def test_a_request_cannot_name_one_thing_twice() -> None:
    for twice in ({"cpus": (1, 1)}, {"ports": (80, 80)}, {"gpus": gpu() + gpu()}):
        with pytest.raises(ValueError, match="twice"):
            Request.model_validate(twice)


def test_a_refusal_names_resource_amounts_and_holder() -> None:
    state = granted(wish(1, gpus=gpu(share=True, gib=50)))
    told = error(refused(state, wish(2, "embed", gpus=gpu(share=True, gib=31))))
    assert told.details["resource"] == "gpu_memory"
    assert (told.details["needed"], told.details["available"]) == (31 * 1024, 30 * 1024)
    assert told.details["holder"] == {"deployment": "node-1", "pid": 1, "service": "llm"}
    assert told.where == "services.embed"
    assert "GPU-a: 31.0 GiB needed, 30.0 GiB free, 1.0 GiB missing" in told.what
    assert "coexist down --deployment node-1" in str(told.hint)


def test_a_refusal_of_cpus_names_which() -> None:
    state = granted(wish(1, cpus=(0, 1, 2, 3)))
    told = error(refused(state, wish(2, cpus=(2, 3, 4))))
    assert "CPUs 2-3 held by deployment 'node-1' (pid 1, service 'llm')" in told.what
    assert (told.details["needed"], told.details["available"]) == (3, 1)


CLAIMS = st.lists(
    st.builds(
        GpuClaim,
        uuid=st.sampled_from(["GPU-a", "GPU-b"]),
        share=st.booleans(),
        memory_bytes=st.integers(0, 60 * GIB),
    ),
    max_size=2,
    unique_by=lambda claim: claim.uuid,
)
REQUESTS = st.builds(
    Request,
    gpus=CLAIMS.map(tuple),
    cpus=st.sets(st.integers(0, 5), max_size=3).map(tuple),
    cpus_shared=st.booleans(),
    numa_bytes=st.dictionaries(st.just(0), st.integers(0, 40 * GIB), max_size=1),
    ports=st.sets(st.integers(8000, 8003), max_size=2).map(tuple),
)


@given(st.lists(st.tuples(st.sampled_from(["grant", "release"]), st.lists(REQUESTS, min_size=1, max_size=2))))
def test_never_a_core_twice_never_a_byte_over(moves: list[tuple[str, list[Request]]]) -> None:
    state = EMPTY
    for number, (move, requests) in enumerate(moves, start=1):
        if move == "release" and state.grants:
            state = without(state, [state.grants[0].id])
            continue
        wishes = [
            Grant(id=f"{number}-{i}", owner=owner(number), request=request, granted_at_s=0, deadline_s=None)
            for i, request in enumerate(requests)
        ]
        decision = decide(state, wishes, TOTALS, WORLD)
        if isinstance(decision, State):
            assert decision.grants == (*state.grants, *wishes)
            state = decision
        else:
            assert decision.conflicts
            assert all(conflict.needed > conflict.available for conflict in decision.conflicts)
        _assert_no_double_grant(state)


def _assert_no_double_grant(state: State) -> None:
    requests = [grant.request for grant in state.grants]
    for cpu in range(6):
        users = [request for request in requests if cpu in request.cpus]
        assert len(users) <= 1 or all(request.cpus_shared for request in users)
    ports = [port for request in requests for port in request.ports]
    assert len(ports) == len(set(ports))
    assert sum(request.numa_bytes.get(0, 0) for request in requests) <= 64 * GIB
    for uuid in ("GPU-a", "GPU-b"):
        claims = [claim for request in requests for claim in request.gpus if claim.uuid == uuid]
        assert len(claims) <= 1 or all(claim.share for claim in claims)
        assert sum(claim.memory_bytes or 0 for claim in claims) <= 80 * GIB


@given(st.lists(REQUESTS, max_size=6))
def test_the_first_service_alone_is_refused_only_for_what_the_host_lacks(requests: list[Request]) -> None:
    for request in requests:
        only = Grant(id="x", owner=owner(), request=request, granted_at_s=0, deadline_s=None)
        assert isinstance(decide(EMPTY, [only], TOTALS, WORLD), State)


@given(st.lists(REQUESTS, min_size=1, max_size=4))
def test_a_ledger_survives_its_file(requests: list[Request]) -> None:
    grants = tuple(
        Grant(id=str(i), owner=owner(i), request=request, granted_at_s=0.5, deadline_s=None if i % 2 else 3.25)
        for i, request in enumerate(requests)
    )
    state = State(boot_id=BOOT, grants=grants)
    assert State.model_validate_json(state.model_dump_json()) == state


def alive(*numbers: int) -> World:
    return World(BOOT, 100.0, lambda each: each.pid in numbers)


def test_a_grant_that_a_process_keeps_is_held_while_that_or_its_owner_lives() -> None:
    state = granted(wish(1, cpus=(0,)).model_copy(update={"kept_by": owner(7)}))
    assert swept(state, alive(1)).grants == state.grants
    assert swept(state, alive(7)).grants == state.grants
    assert swept(state, alive(2)).grants == ()


def test_what_a_dead_owner_left_to_a_living_process_is_no_one_elses() -> None:
    state = granted(wish(1, gpus=gpu()).model_copy(update={"kept_by": owner(7)}))
    decision = decide(state, [wish(2, gpus=gpu())], TOTALS, alive(7, 2))
    assert isinstance(decision, Refusal)


def test_only_an_orphan_of_the_named_processes_is_taken_over() -> None:
    state = granted(wish(1, cpus=(0,)).model_copy(update={"kept_by": owner(7)}), wish(1, "embed", cpus=(1,)))
    assert left_to(state, {(7, 70)}, alive(7)) == ("1-llm",)
    assert left_to(state, {(7, 70)}, alive(1, 7)) == (), "its owner lives"
    assert left_to(state, {(7, 71)}, alive(7)) == (), "another process of that number"
    assert left_to(state, {(8, 80)}, alive(7)) == ()


def test_what_is_replaced_is_no_obstacle_to_its_successor_but_stays_held() -> None:
    state = granted(wish(1, "llm", gpus=gpu(), ports=(8001,)))
    bigger = wish(1, "new", gpus=gpu(gib=79), ports=(8001, 8002))
    decision = decide(state, [bigger], TOTALS, WORLD, replaced=["1-llm"])
    assert isinstance(decision, State)
    assert [grant.id for grant in decision.grants] == ["1-llm", "1-new"]
    assert isinstance(decide(decision, [wish(2, ports=(8001,))], TOTALS, WORLD), Refusal)
    assert isinstance(decide(state, [bigger], TOTALS, WORLD), Refusal)


def test_a_refused_successor_leaves_all_as_it_was() -> None:
    state = granted(wish(1, "llm", cpus=(0,)), wish(2, cpus=(1,)))
    decision = decide(state, [wish(1, "new", cpus=(1,))], TOTALS, WORLD, replaced=["1-llm"])
    assert isinstance(decision, Refusal)
