from __future__ import annotations

from dataclasses import replace

import pytest

from toolkit.affinity import Placement as Pages
from toolkit.affinity import Report
from toolkit.supervise.lifecycle import (
    ILLEGAL_ARROWS,
    LEGAL_ARROWS,
    STAGES,
    BackoffElapsed,
    Begin,
    Blocked,
    Checked,
    Compiled,
    End,
    Ending,
    Event,
    Failed,
    Failure,
    FailureRecord,
    Instance,
    LateCompile,
    Loaded,
    Measured,
    Moved,
    Policy,
    Proven,
    Refused,
    Registered,
    Reserved,
    RestartRequested,
    ScheduleRetry,
    Spawned,
    StageTime,
    Stalled,
    State,
    StopRequested,
    Stuck,
    Vacated,
    backoff_s,
    step,
)
from toolkit.supervise.placement import Placement
from toolkit.warm.compiles import Compile
from toolkit.warm.model import FirstRequest, Proof, StageReport

PROOF = Proof(None, (), 1.0, 2.0, 0, (), 0.5)
REPORT = StageReport({"context": 0.1, "weights": 0.2, "kv_cache": None, "tokenizer": None})
BROKEN = Failure("it broke")
HOPELESS = Failure("wrong GPU", verdict="stop")
LOCKED = Failure("a stale lock", verdict="retry_after_cleanup")
DOWNLOADS = Failure("downloads", verdict="wait")
PLACED = Placement(Report(0, (), ()), Pages({}, None, ""))
POLICY = Policy(max_restarts=2, window_s=100.0, backoff_first_s=1.0, backoff_cap_s=8.0, grace_s=5.0)

EVENTS: dict[str, Event] = {
    "Begin": Begin(1),
    "Blocked": Blocked(1, Failure("llm failed", "stop", "dependency")),
    "Reserved": Reserved(1),
    "Spawned": Spawned(1, 4242),
    "Loaded": Loaded(1, REPORT),
    "Proven": Proven(1, PROOF),
    "Registered": Registered(1),
    "Measured": Measured(1, FirstRequest(1.0, 1.0, 1.0)),
    "Checked": Checked(1, PLACED),
    "LateCompile": LateCompile(1, 3),
    "Stalled/wait": Stalled(1, DOWNLOADS),
    "Stalled": Stalled(1, BROKEN),
    "Failed": Failed(1, BROKEN),
    "Failed/clean": Failed(1, LOCKED),
    "Failed/stop": Failed(1, HOPELESS),
    "Vacated": Vacated(1),
    "Stuck": Stuck(1, Failure("pid 7 stays")),
    "BackoffElapsed": BackoffElapsed(1),
    "StopRequested": StopRequested(1),
    "StopRequested/force": StopRequested(1, force=True),
    "RestartRequested": RestartRequested(1),
}


def in_state(column: str) -> Instance:
    """An instance as it is in this state after an ordinary life; ``INIT+`` has begun, ``PRIME+`` has its proof."""
    plain = Instance("llm", POLICY)
    stages = tuple(StageTime(stage, 0.0) for stage in STAGES)
    alive = replace(plain, begun=True, pid=None if column == "PRELOAD" else 4242)
    return {
        "INIT": plain,
        "INIT+": replace(plain, begun=True, stages=stages[:1]),
        "PRELOAD": replace(alive, state=State.PRELOAD, stages=stages[:2]),
        "PRIME": replace(alive, state=State.PRIME, stages=stages[:3]),
        "PRIME+": replace(alive, state=State.PRIME, stages=stages[:3], proof=PROOF),
        "SERVING": replace(alive, state=State.SERVING, stages=stages, proof=PROOF, ready_s=1.0),
        "DRAINING": replace(alive, state=State.DRAINING, ending=Ending("retry", State.SERVING, 1.0)),
        "STOPPED": replace(plain, state=State.STOPPED, begun=True),
        "BACKOFF": replace(plain, state=State.BACKOFF, begun=True),
        "FAILED": replace(plain, state=State.FAILED, begun=True),
    }[column]


# Every event in every state: the state afterwards and the actions, "." where nothing happens, "!" where it is refused.
TABLE = """
event               | INIT          | INIT+           | PRELOAD         | PRIME           | PRIME+          | SERVING         | DRAINING         | STOPPED | BACKOFF             | FAILED
Begin               | INIT Reserve  | .               | .               | .               | .               | .               | .                | .       | .                   | .
Blocked             | FAILED        | .               | .               | .               | .               | .               | .                | .       | .                   | .
Reserved            | INIT Log      | PRELOAD Spawn   | .               | !               | !               | !               | .                | .       | .                   | .
Spawned             | .             | .               | PRELOAD WaitLoaded | .            | .               | .               | .                | .       | .                   | .
Loaded              | !             | !               | PRIME Prime     | .               | .               | !               | .                | .       | .                   | .
Proven              | .             | .               | .               | PRIME Register  | .               | .               | .                | .       | .                   | .
Registered          | !             | !               | !               | PRIME Log       | SERVING Watch   | .               | .                | .       | .                   | .
Measured            | .             | .               | .               | .               | .               | SERVING         | .                | .       | .                   | .
Checked             | .             | .               | .               | .               | .               | SERVING         | .                | .       | .                   | .
LateCompile         | .             | .               | .               | .               | .               | SERVING Compiled | .               | .       | .                   | .
Stalled/wait        | .             | .               | PRELOAD ExtendWindow Log | PRIME ExtendWindow Log | PRIME ExtendWindow Log | . | .       | .       | .                   | .
Stalled             | .             | .               | DRAINING End    | DRAINING End    | DRAINING End    | .               | .                | .       | .                   | .
Failed              | DRAINING End  | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | .                | .       | .                   | .
Failed/clean        | DRAINING End  | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | .                | .       | .                   | .
Failed/stop         | DRAINING End  | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | .                | .       | .                   | .
Vacated             | .             | .               | INIT            | !               | !               | INIT            | BACKOFF ScheduleRetry | .  | .                   | .
Stuck               | .             | .               | .               | .               | .               | .               | FAILED           | .       | .                   | .
BackoffElapsed      | .             | .               | .               | .               | .               | .               | .                | .       | INIT                | .
StopRequested       | STOPPED       | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING         | .       | STOPPED CancelRetry | .
StopRequested/force | STOPPED       | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End     | .       | STOPPED CancelRetry | .
RestartRequested    | .             | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING End    | DRAINING         | INIT    | INIT CancelRetry    | INIT
"""  # noqa: E501
_ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]
CELLS = [(row[0], column, cell) for row in _ROWS[1:] for column, cell in zip(_ROWS[0][1:], row[1:], strict=True)]


def test_the_table_has_every_state_and_every_event() -> None:
    assert {column.rstrip("+") for column in _ROWS[0][1:]} == {state.value for state in State}
    assert [row[0] for row in _ROWS[1:]] == list(EVENTS)


@pytest.mark.parametrize(("event", "column", "cell"), CELLS)
def test_every_event_in_every_state(event: str, column: str, cell: str) -> None:
    before = in_state(column)
    after, actions = step(before, EVENTS[event], 2.0)
    told = [type(action).__name__ for action in actions if not isinstance(action, Moved)]
    if cell == ".":
        assert (after, actions) == (before, ())
    elif cell == "!":
        assert (after, told) == (before, ["Refused"])
    else:
        assert [after.state.value, *told] == cell.split()
        assert after != before or told


@pytest.mark.parametrize(("event", "column"), [(event, column) for event, column, _ in CELLS])
def test_late_events_of_a_previous_attempt_are_ignored(event: str, column: str) -> None:
    current = replace(in_state(column), attempt=2)
    assert step(current, EVENTS[event], 2.0) == (current, ())


def test_there_are_five_legal_and_seven_illegal_arrows() -> None:
    assert (len(LEGAL_ARROWS), len(ILLEGAL_ARROWS)) == (5, 7)


def test_each_illegal_arrow_is_refused_with_its_reason_and_moves_nothing() -> None:
    asks = {State.INIT: "Vacated", State.PRELOAD: "Reserved", State.PRIME: "Loaded", State.SERVING: "Registered"}
    for source, target in ILLEGAL_ARROWS:
        before = in_state(source.value)
        after, actions = step(before, EVENTS[asks[target]], 2.0)
        assert after == before
        (refused,) = actions
        assert isinstance(refused, Refused)
        assert (refused.source, refused.target) == (source, target)
        assert f"came in {source.value}, which leads only to" in refused.reason


def life(instance: Instance, *events: Event, now_s: float = 0.0) -> Instance:
    for event in events:
        instance, _ = step(instance, event, now_s)
    return instance


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


def test_a_planned_stop_drains_and_gives_grace_but_a_failure_kills() -> None:
    _, planned = step(in_state("SERVING"), StopRequested(1), 2.0)
    _, loading = step(in_state("PRELOAD"), StopRequested(1), 2.0)
    _, failed = step(in_state("SERVING"), Failed(1, BROKEN), 2.0)
    assert [actions[-1] for actions in (planned, loading, failed)] == [
        End(drain_s=5.0, grace_s=5.0),
        End(grace_s=5.0),
        End(),
    ]


def test_a_restart_of_a_serving_instance_drains_and_begins_the_next_attempt() -> None:
    instance = life(in_state("SERVING"), RestartRequested(1))
    after, actions = step(instance, Vacated(1), 2.0)
    assert (after.state, after.attempt, after.restarts, after.begun) == (State.INIT, 2, 0, False)
    assert actions == (Moved(State.DRAINING, State.INIT, "drained"),)


def test_a_failure_waits_then_begins_the_next_attempt_and_is_remembered() -> None:
    instance = life(in_state("SERVING"), Failed(1, BROKEN), Vacated(1), BackoffElapsed(1), now_s=50.0)
    assert (instance.state, instance.attempt, instance.restarts) == (State.INIT, 2, 1)
    assert instance.last_failure is not None
    assert (instance.last_failure.failure, instance.last_failure.state) == (BROKEN, State.SERVING)


def test_the_time_of_taking_down_counts_as_back_off() -> None:
    instance = life(in_state("SERVING"), Failed(1, BROKEN, jitter=1.0), now_s=10.0)
    _, actions = step(instance, Vacated(1), 10.75)
    assert actions[-1] == ScheduleRetry(0.25)


def test_back_off_doubles_up_to_its_cap_and_half_of_it_is_jitter() -> None:
    assert [backoff_s(POLICY, recent, 1.0) for recent in range(5)] == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert [backoff_s(POLICY, 1, jitter) for jitter in (0.0, 0.5, 1.0)] == [1.0, 1.5, 2.0]
    assert backoff_s(POLICY, 10_000, 1.0) == 8.0


def test_it_gives_up_after_too_many_restarts_within_the_window_and_says_why() -> None:
    spent = replace(in_state("SERVING"), recent_restarts_s=(10.0, 20.0))
    instance = life(spent, Failed(1, BROKEN), Vacated(1), now_s=30.0)
    assert instance.state is State.FAILED
    assert instance.last_failure is not None
    assert instance.last_failure.failure.summary == "gave up after 2 restarts within 100 s: it broke"


def test_restarts_outside_the_window_do_not_count() -> None:
    spent = replace(in_state("SERVING"), recent_restarts_s=(10.0, 20.0))
    assert life(spent, Failed(1, BROKEN), Vacated(1), now_s=115.0).state is State.BACKOFF


def test_the_verdict_stop_is_not_retried() -> None:
    instance = life(in_state("PRELOAD"), Failed(1, HOPELESS), Vacated(1))
    assert instance.state is State.FAILED


def test_the_verdict_wait_extends_the_window_a_few_times_only() -> None:
    instance = in_state("PRELOAD")
    wait = Stalled(1, Failure("downloads", verdict="wait"))
    for _ in range(POLICY.max_waits):
        instance, actions = step(instance, wait, 2.0)
        assert [type(action).__name__ for action in actions] == ["ExtendWindow", "Log"]
    after, _ = step(instance, wait, 2.0)
    assert after.state is State.DRAINING


def test_who_moved_on_meanwhile_is_waited_for_anew() -> None:
    instance = in_state("PRELOAD")
    for _ in range(5 * POLICY.max_waits):
        instance, _ = step(instance, Stalled(1, Failure("downloads", verdict="wait"), moved=True), 2.0)
    assert (instance.state, instance.waits) == (State.PRELOAD, 1)


def test_a_restart_by_a_person_gives_a_failed_instance_a_new_budget() -> None:
    spent = replace(in_state("FAILED"), recent_restarts_s=(1.0, 2.0))
    after, _ = step(spent, RestartRequested(1), 3.0)
    assert (after.state, after.attempt, after.recent_restarts_s) == (State.INIT, 2, ())


def test_only_the_verdict_that_asks_for_it_cleans_before_the_next_attempt() -> None:
    for verdict in ("retry", "retry_after_cleanup", "wait", "none"):
        _, actions = step(in_state("PRELOAD"), Failed(1, Failure("it broke", verdict)), 2.0)
        assert actions[-1] == End(clean=verdict == "retry_after_cleanup")


def test_only_an_end_that_somebody_wants_is_planned() -> None:
    assert End(drain_s=1.0, grace_s=1.0).planned
    assert not End().planned
    assert not End(clean=True).planned


def test_a_stop_while_it_is_taken_down_for_a_retry_stops_it() -> None:
    instance = life(in_state("SERVING"), Failed(1, BROKEN), StopRequested(1), Vacated(1))
    assert instance.state is State.STOPPED


def test_a_stop_does_not_hide_that_it_gave_up() -> None:
    instance = life(in_state("SERVING"), Failed(1, HOPELESS), StopRequested(1), Vacated(1))
    assert instance.state is State.FAILED


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


def test_no_instance_serves_without_its_proof() -> None:
    after, _ = step(in_state("PRIME"), Registered(1), 2.0)
    assert after.state is State.PRIME
