from __future__ import annotations

from tests.supervise.lifecycle.lives import EVENTS, in_state
from toolkit.supervise.lifecycle import ILLEGAL_ARROWS, State, step
from toolkit.supervise.lifecycle.actions import Refused


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
