from __future__ import annotations

from dataclasses import replace

import pytest

from tests.supervise.lifecycle.lives import EVENTS, in_state
from toolkit.supervise.lifecycle import State, step
from toolkit.supervise.lifecycle.actions import Moved

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
