from __future__ import annotations

from toolkit.supervise.lifecycle.actions import End


def test_only_an_end_that_somebody_wants_is_planned() -> None:
    assert End(drain_s=1.0, grace_s=1.0).planned
    assert not End().planned
    assert not End(clean=True).planned
