from __future__ import annotations

from dataclasses import replace

from tests.supervise.lifecycle.lives import BROKEN, HOPELESS, in_state, life
from toolkit.supervise.lifecycle import State, step
from toolkit.supervise.lifecycle.actions import End, Moved
from toolkit.supervise.lifecycle.events import Failed, RestartRequested, StopRequested, Vacated


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


def test_a_restart_by_a_person_gives_a_failed_instance_a_new_budget() -> None:
    spent = replace(in_state("FAILED"), recent_restarts_s=(1.0, 2.0), recent_drains_s=(1.0,))
    after, _ = step(spent, RestartRequested(1), 3.0)
    assert (after.state, after.attempt) == (State.INIT, 2)
    assert (after.recent_restarts_s, after.recent_drains_s) == ((), ())


def test_a_stop_while_it_is_taken_down_for_a_retry_stops_it() -> None:
    instance = life(in_state("SERVING"), Failed(1, BROKEN), StopRequested(1), Vacated(1))
    assert instance.state is State.STOPPED


def test_a_stop_does_not_hide_that_it_gave_up() -> None:
    instance = life(in_state("SERVING"), Failed(1, HOPELESS), StopRequested(1), Vacated(1))
    assert instance.state is State.FAILED
