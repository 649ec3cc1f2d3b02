from __future__ import annotations

from dataclasses import replace

from tests.supervise.lifecycle.lives import POLICY, PROOF, REPORT, in_state, life
from toolkit.supervise.lifecycle import Failure, FailureRecord, Instance, State, step
from toolkit.supervise.lifecycle.actions import Compiled, Log, Moved
from toolkit.supervise.lifecycle.events import (
    Begin,
    LateCompile,
    Loaded,
    Proven,
    Registered,
    Reserved,
    Spawned,
    Vacated,
)
from toolkit.warm.compiles import Compile


def test_a_start_passes_the_four_stages_and_times_each() -> None:
    instance = Instance("llm", POLICY)
    events = [Begin(1), Reserved(1), Spawned(1, 9), Loaded(1, REPORT), Proven(1, PROOF), Registered(1)]
    for now_s, event in enumerate(events):
        instance, _ = step(instance, event, float(now_s))
    assert [(stage.state, stage.entered_s, stage.left_s) for stage in instance.stages] == [
        (State.INIT, 0.0, 1.0),
        (State.PRELOAD, 1.0, 3.0),
        (State.PRIME, 3.0, 5.0),
        (State.SERVING, 5.0, None),
    ]
    assert (instance.ready_s, instance.report, instance.proof) == (5.0, REPORT, PROOF)


def test_no_instance_serves_without_its_proof() -> None:
    after, _ = step(in_state("PRIME"), Registered(1), 2.0)
    assert after.state is State.PRIME


def test_a_late_compile_drains_only_where_that_is_wanted() -> None:
    warned, actions = step(in_state("SERVING"), LateCompile(1, 1), 2.0)
    assert (warned.state, actions) == (State.SERVING, (Compiled(1),))
    strict = replace(in_state("SERVING"), policy=replace(POLICY, late_compile="drain"))
    assert life(strict, LateCompile(1, 1), Vacated(1)).attempt == 2
    kernel = Compile("triton", 1, "add_kernel")
    drained, (told, moved, _) = step(strict, LateCompile(1, 1, (kernel,)), 2.0)
    assert (drained.late, told) == ((kernel,), Compiled(1, (kernel,)))
    why = "compiled after READY (1 in all): triton: 1 (add_kernel)"
    assert moved == Moved(State.SERVING, State.DRAINING, why)
    record = FailureRecord(Failure(why, "retry", "late_compile", "add_kernel"), 1, State.SERVING, 2.0)
    assert drained.last_failure == record
    assert step(drained, Vacated(1), 3.0)[0].last_failure == record, "the next attempt still tells why"


def test_who_compiles_after_ready_in_each_attempt_is_drained_only_so_often() -> None:
    strict = replace(in_state("SERVING"), policy=replace(POLICY, late_compile="drain", max_restarts=2))
    for drains in range(2):
        drained, _ = step(strict, LateCompile(drains + 1, 1), float(drains))
        fresh, _ = step(drained, Vacated(drains + 1), float(drains))
        assert (fresh.state, fresh.attempt, fresh.restarts) == (State.INIT, drains + 2, 0)
        strict = replace(fresh, state=State.SERVING)
    kept, actions = step(strict, LateCompile(3, 1), 2.0)
    assert (kept.state, kept.late_compiles) == (State.SERVING, 1)
    assert actions == (Compiled(1), Log("not drained again: 2 new attempts have compiled after READY too"))
    later, _ = step(strict, LateCompile(3, 1), 2.0 + POLICY.window_s)
    assert later.state is State.DRAINING


def test_a_service_that_is_never_restarted_is_drained_once() -> None:
    strict = replace(in_state("SERVING"), policy=replace(POLICY, late_compile="drain", max_restarts=0))
    assert step(strict, LateCompile(1, 1), 2.0)[0].state is State.DRAINING
