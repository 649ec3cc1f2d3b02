from __future__ import annotations

from tests.runtimes.conftest import context, service
from toolkit import canaries
from toolkit.canaries import CanaryPrompt, CanarySet, Reference
from toolkit.runtimes.base import CanaryCheck
from toolkit.runtimes.generation_canary import canary_of

PROMPT = CanaryPrompt("short", "One, two, three,", 1, 1, "context_fmha", 3)


def recorded(*margins: float) -> CanarySet:
    return CanarySet((PROMPT,), {"short": Reference((5, 6, 7), margins, " four, five", (5, 6, 11))}, 0.5, "plain")


LLM = service(runtime="vllm", model="models/llama")


def test_the_recorded_answer_counts_up_to_its_first_tie():
    found = recorded(4.0, 3.0, 0.2)
    check, asked = canary_of(context(LLM, reference=canaries.to_document(found)))
    assert check == CanaryCheck("One, two, three,", 2, expected_text=" four,")
    assert asked == found


def test_what_the_service_expects_is_above_what_was_recorded_and_the_set_is_asked_all_the_same():
    found = recorded(4.0, 3.0, 2.0)
    made = service(runtime="vllm", model="m", canary={"prompt": "Hello", "max_tokens": 2, "expected": " you"})
    check, asked = canary_of(context(made, reference=canaries.to_document(found)))
    assert check == CanaryCheck("Hello", 2, expected_text=" you")
    assert asked == found


def test_in_a_plan_nothing_is_recorded_yet():
    assert canary_of(context(LLM)) == (CanaryCheck("The capital of France is", 8), None)


def test_a_set_without_references_is_asked_beside_what_is_expected():
    made = service(runtime="vllm", model="m", canary={"expected": " Paris"})
    found = CanarySet((PROMPT,), {}, 0.0, "none: it does not fit")
    check, asked = canary_of(context(made, reference=canaries.to_document(found)))
    assert check == CanaryCheck("The capital of France is", 8, expected_text=" Paris")
    assert asked == found


def test_where_a_model_is_undecided_at_once_any_answer_could_be_right():
    check, _ = canary_of(context(LLM, reference=canaries.to_document(recorded(0.4, 3.0, 2.0))))
    assert check == CanaryCheck("One, two, three,", 3, repeats_only=True)


def test_in_a_chat_nothing_is_recorded_so_repeats_must_agree():
    made = service(runtime="transformers", model="m", canary={"expected": " Paris"})
    found = recorded(4.0, 3.0, 2.0)
    check, asked = canary_of(context(made, reference=canaries.to_document(found)), plain=False)
    assert check.expected_text == " Paris"
    assert asked is not None
    assert (asked.references, asked.prompts[0].times) == ({}, 2)


def test_the_first_word_of_a_fused_engine_is_what_is_expected_where_nothing_else_is_known():
    found = CanarySet((PROMPT,), {"short": Reference((), (), " four")}, 0.0, "a fused engine")
    check, _ = canary_of(context(LLM, reference=canaries.to_document(found)))
    assert check == CanaryCheck("One, two, three,", 3, expected_text=" four")


def test_where_nobody_knows_what_is_right_repeats_must_agree():
    found = CanarySet((PROMPT,), {}, 0.0, "none: it does not fit")
    check, asked = canary_of(context(LLM, reference=canaries.to_document(found)))
    assert check == CanaryCheck("One, two, three,", 3, repeats_only=True)
    assert asked == found
