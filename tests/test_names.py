from __future__ import annotations

from toolkit.names import nearest, suggestion


def test_an_equal_beginning_makes_a_word_nearer() -> None:
    assert nearest("envs", ["engines", "environments"]) == "environments"


def test_nothing_near_lists_what_is_known() -> None:
    assert suggestion("zzz", ["a", "b"]) == "Known: a, b."
    assert suggestion("zzz", []) is None
