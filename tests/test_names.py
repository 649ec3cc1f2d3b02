from __future__ import annotations

from toolkit.names import did_you_mean, nearest, suggestion


def test_an_equal_beginning_makes_a_word_nearer() -> None:
    assert nearest("envs", ["engines", "environments"]) == "environments"


def test_only_what_is_near_is_asked_for() -> None:
    assert did_you_mean("envs", ["engines", "environments"]) == "Did you mean 'environments'?"
    assert did_you_mean("zzz", ["engines"]) is None


def test_nothing_near_lists_what_is_known() -> None:
    assert suggestion("zzz", ["a", "b"]) == "Known: a, b."
    assert suggestion("zzz", []) is None
