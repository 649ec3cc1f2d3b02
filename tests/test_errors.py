from __future__ import annotations

import pytest

from toolkit.errors import ManyFaultsError, NotReadyInTimeError, ToolkitError, UsageError, of_document


def test_an_error_reads_where_what_and_next_step() -> None:
    error = ToolkitError("GPU 9 not found; this host has 0-7", "two.yaml:14 services.llm.gpus", "See 'coexist host'.")
    assert str(error) == "two.yaml:14 services.llm.gpus: GPU 9 not found; this host has 0-7. See 'coexist host'."


@pytest.mark.parametrize(("what", "text"), [("a", "a. Do b."), ("a.", "a. Do b."), ("a?", "a? Do b.")])
def test_the_hint_is_a_sentence_of_its_own(what: str, text: str) -> None:
    assert str(ToolkitError(what, hint="Do b.")) == text


def test_each_kind_of_error_has_its_exit_code() -> None:
    assert [kind.exit_code for kind in (ToolkitError, UsageError, NotReadyInTimeError, ManyFaultsError)] == [1, 2, 4, 1]


def test_details_travel_into_the_error() -> None:
    assert ToolkitError("x", code="port", resource="port", needed=8001).details == {"resource": "port", "needed": 8001}


def test_a_fault_told_of_another_place_keeps_all_else() -> None:
    error = ToolkitError("a", "f:1", "Do b.", code="port", needed=1).at("g:2")
    assert (error.what, error.where, error.hint, error.code, error.details) == (
        "a",
        "g:2",
        "Do b.",
        "port",
        {"needed": 1},
    )


@pytest.mark.parametrize("faults", [1, 2])
def test_an_error_that_was_told_as_json_is_the_same_again(faults: int) -> None:
    told = ManyFaultsError(tuple(ToolkitError("a", f"f:{n}", "Do b.", code="c") for n in range(faults)))
    again = of_document(told.document())
    assert str(again) == str(told)
    assert (again.code, again.details) == ("c", told.details)


def test_one_fault_is_told_as_itself() -> None:
    error = ManyFaultsError((ToolkitError("a", "f:1", "Do b."),))
    assert (error.what, error.where, error.hint) == ("a", "f:1", "Do b.")
    assert str(error) == "f:1: a. Do b."


def test_many_faults_keep_their_order_and_travel_as_details() -> None:
    error = ManyFaultsError((ToolkitError("a", "f:1"), ToolkitError("b", "f:2")))
    assert str(error) == "f:1: a\nf:2: b"
    assert error.what == "2 faults"
    assert [fault["what"] for fault in error.details["faults"]] == ["a", "b"]
