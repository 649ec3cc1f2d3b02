"""Random lives: whatever happens in whatever order, the promises of the lifecycle hold."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.supervise.lifecycle.lives import EVENTS
from toolkit.supervise.lifecycle import (
    AT_REST,
    ILLEGAL_ARROWS,
    LEGAL_ARROWS,
    STAGES,
    Action,
    Event,
    Failure,
    Instance,
    Policy,
    State,
    step,
)
from toolkit.supervise.lifecycle.actions import (
    End,
    ExtendWindow,
    Moved,
    Prime,
    Refused,
    Register,
    Reserve,
    ScheduleRetry,
    Spawn,
    WaitLoaded,
    Watch,
)
from toolkit.supervise.lifecycle.events import (
    Failed,
    Stalled,
    Vacated,
)

# Who moves an instance on: the work that was begun, which always answers. What has not begun waits for its gates, what
# rests for a person.
WORK = (Reserve, Spawn, WaitLoaded, ExtendWindow, Prime, Register, Watch, End, ScheduleRetry)
OWNERS: dict[State, tuple[type[Action], ...]] = {
    State.INIT: (Reserve,),
    State.PRELOAD: (Spawn, WaitLoaded, ExtendWindow),
    State.PRIME: (Prime, Register, ExtendWindow),
    State.SERVING: (Watch,),
    State.DRAINING: (End,),
    State.BACKOFF: (ScheduleRetry,),
}
VERDICTS = st.sampled_from(["retry", "retry_after_cleanup", "wait", "stop", "none"])


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.instance = Instance("llm", Policy(max_restarts=2, window_s=50.0))
        self.spawned: set[int] = set()
        self.work: Action | None = None

    def happen(self, event: Event) -> tuple[Instance, tuple[Action, ...]]:
        before = self.instance
        self.instance, actions = step(before, event, self.now_s)
        if self.instance.attempt != before.attempt:
            self.work = None
        for action in actions:
            self.check(before, action)
            self.work = action if isinstance(action, WORK) else self.work
        if event.attempt != before.attempt:
            assert (self.instance, actions) == (before, ())
        return before, actions

    def check(self, before: Instance, action: Action) -> None:
        if isinstance(action, Moved):
            assert (action.source, action.target) == (before.state, self.instance.state)
            if action.source in STAGES and action.target in STAGES:
                assert (action.source, action.target) in LEGAL_ARROWS
        if isinstance(action, Refused):
            assert (action.source, action.target) in ILLEGAL_ARROWS
            assert self.instance == before
        if isinstance(action, Spawn):
            assert before.attempt not in self.spawned, "started twice in one attempt"
            self.spawned.add(before.attempt)

    @rule(name=st.sampled_from(sorted(EVENTS)), late=st.integers(0, 3))
    def anything(self, name: str, late: int) -> None:
        event = EVENTS[name]
        facts: dict[str, Any] = {**vars(event), "attempt": self.instance.attempt - late}
        self.happen(type(event)(**facts))

    @rule(verdict=VERDICTS, jitter=st.floats(0, 1), stalls=st.booleans())
    def trouble(self, verdict: Any, jitter: float, stalls: bool) -> None:
        kind = Stalled if stalls else Failed
        self.happen(kind(self.instance.attempt, Failure("trouble", verdict), jitter))

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def the_whole_start_goes_well(self) -> None:
        for name in ("Begin", "Reserved", "Spawned", "Loaded", "Proven", "Registered"):
            event = EVENTS[name]
            self.happen(type(event)(**{**vars(event), "attempt": self.instance.attempt}))

    @rule()
    def the_tree_is_gone(self) -> None:
        before, actions = self.happen(Vacated(self.instance.attempt))
        if before.state is State.DRAINING:
            assert self.instance.state in (State.INIT, State.BACKOFF, *AT_REST)
            retries = [action for action in actions if isinstance(action, ScheduleRetry)]
            assert bool(retries) == (self.instance.state is State.BACKOFF)

    @invariant()
    def stages_are_in_order_and_only_the_last_is_open(self) -> None:
        stages = self.instance.stages
        assert [stage.state for stage in stages] == list(STAGES[: len(stages)])
        assert all(stage.left_s is not None and stage.left_s >= stage.entered_s for stage in stages[:-1])
        if self.instance.state not in STAGES and stages:
            assert stages[-1].left_s is not None

    @invariant()
    def every_state_has_an_owner(self) -> None:
        begun = self.instance.begun or self.instance.state is not State.INIT
        if begun and self.instance.state not in AT_REST:
            assert isinstance(self.work, OWNERS[self.instance.state])

    @invariant()
    def nothing_at_rest_has_a_process(self) -> None:
        if self.instance.state in (*AT_REST, State.BACKOFF, State.INIT):
            assert self.instance.pid is None

    @invariant()
    def only_what_serves_is_ready(self) -> None:
        assert (self.instance.ready_s is not None) == (self.instance.state is State.SERVING)
        if self.instance.state is State.SERVING:
            assert self.instance.proof is not None

    @invariant()
    def what_is_taken_down_has_a_way_on(self) -> None:
        assert (self.instance.ending is not None) == (self.instance.state is State.DRAINING)

    @invariant()
    def what_failed_says_why(self) -> None:
        if self.instance.state in (State.FAILED, State.BACKOFF):
            assert self.instance.last_failure is not None

    @invariant()
    def a_stop_always_leads_to_rest(self) -> None:
        stop = type(EVENTS["StopRequested"])(self.instance.attempt)
        after, actions = step(self.instance, stop, self.now_s)
        if after.state is State.DRAINING:
            assert self.instance.state is State.DRAINING or isinstance(actions[-1], End)
            after, _ = step(after, Vacated(after.attempt), self.now_s)
        assert after.state in AT_REST


Lives.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
