from __future__ import annotations

import re

from draw_boot import SHOWN, WINDOW, Series, svg


def circles(drawn: str) -> list[str]:
    return re.findall(r"<circle [^>]*fill='([^']+)'", drawn)


def test_the_window_that_proved_it_is_filled_and_what_users_met_is_not() -> None:
    drawn = svg([Series("asked at once", [7200.0, 85.0, 84.0], False), Series("proof <1>", [90.0] * 7, True)])
    fills = circles(drawn)
    assert fills[:3] == ["white"] * 3
    assert fills[3:] == ["white"] * 2 + [fills[-1]] * WINDOW
    assert "first 7,200 ms, last 84 ms" in drawn


def test_of_a_long_proof_the_end_is_shown_and_said_to_be() -> None:
    drawn = svg([Series("long", [50.0] * (SHOWN + 10), True)])
    assert len(circles(drawn)) == SHOWN
    assert f"the last {SHOWN} of {SHOWN + 10}" in drawn
