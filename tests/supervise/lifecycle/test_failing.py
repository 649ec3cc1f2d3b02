from __future__ import annotations

from dataclasses import replace

from tests.supervise.lifecycle.lives import BROKEN, HOPELESS, POLICY, in_state, life
from toolkit.supervise.lifecycle import Failure, State, step
from toolkit.supervise.lifecycle.actions import End, ScheduleRetry
from toolkit.supervise.lifecycle.events import BackoffElapsed, Failed, Stalled, Vacated
from toolkit.supervise.lifecycle.failing import backoff_s


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


def test_only_the_verdict_that_asks_for_it_cleans_before_the_next_attempt() -> None:
    for verdict in ("retry", "retry_after_cleanup", "wait", "none"):
        _, actions = step(in_state("PRELOAD"), Failed(1, Failure("it broke", verdict)), 2.0)
        assert actions[-1] == End(clean=verdict == "retry_after_cleanup")
