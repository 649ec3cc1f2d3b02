from __future__ import annotations

from toolkit.supervise.lifecycle import ILLEGAL_ARROWS, LEGAL_ARROWS


def test_there_are_five_legal_and_seven_illegal_arrows() -> None:
    assert (len(LEGAL_ARROWS), len(ILLEGAL_ARROWS)) == (5, 7)
