from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runtimes.conftest import CPUS, ENGINE, GPU, engine_context, flag, service
from toolkit import canaries
from toolkit.canaries import CanaryPrompt, CanarySet
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import CanaryCheck
from toolkit.runtimes.torch import TorchRuntime, canary_check


def llm(**keys: Any):
    return service(**{"runtime": "torch", "engine": "llm", **keys})


def launch(made, assignment=CPUS, **changes: Any):
    return TorchRuntime().launch(engine_context(made, **changes), assignment)


def test_the_engine_server_is_started_with_the_environments_python():
    argv = launch(llm(options={"max_queue": 9})).argv
    assert argv[0] == "/opt/env/bin/python"
    assert Path(argv[1]).parts[-3:] == ("toolkit", "serve", "run.py")
    assert argv[2] == "engine"
    assert flag(argv, "--engine-dir") == "/engines/3f9a"
    assert (flag(argv, "--host"), flag(argv, "--port")) == ("127.0.0.1", "8001")
    assert flag(argv, "--device") == "cpu"
    assert flag(argv, "--max-queue") == "9"
    assert "--memory-bytes" not in argv


def test_on_a_gpu_its_memory_is_bounded_by_the_plan():
    argv = launch(llm(gpus=1), GPU, engine_manifest={**ENGINE, "device": "cuda"}).argv
    assert (flag(argv, "--device"), flag(argv, "--memory-bytes")) == ("cuda", str(4 << 30))


def test_the_model_is_named_after_the_recipe_in_argv_and_requests():
    made = launch(llm())
    assert made.probes.generation is not None
    assert flag(made.argv, "--served-model-name") == made.probes.generation.model == "smollm2-135m"
    assert made.probes.generation.max_input_tokens == 512


def test_the_attempts_token_is_in_headers_and_environment_and_never_in_argv():
    made = launch(llm())
    assert made.env["COEXIST_TOKEN"] == "token-of-this-attempt"
    assert made.probes.register is not None
    assert made.probes.register.headers == {"X-Coexist-Token": "token-of-this-attempt"}
    assert not any("token-of-this-attempt" in argument for argument in made.argv)


@pytest.mark.parametrize(("warmup", "requests"), [("full", 1), ("single", 1), ("none", 0)])
def test_shapes_are_warmed_as_far_as_the_service_says(warmup: str, requests: int):
    probes = launch(llm(warmup=warmup)).probes
    assert [probe.body for probe in probes.warmup] == [{"mode": warmup}] * requests


@pytest.mark.parametrize(("window", "expected_s"), [({}, 30.0), ({"preload_window": "2min"}, 120.0)])
def test_the_preload_window_is_short_unless_the_service_says_otherwise(window: dict[str, str], expected_s: float):
    assert launch(llm(**window)).preload_window_s == expected_s


def test_before_the_engine_is_built_the_launch_is_known_but_no_answer_is():
    made = launch(llm(), engine_manifest=None)
    assert made.probes.canary == CanaryCheck("", 1)


def test_the_engines_own_canary_is_the_default():
    expected = CanaryCheck("The capital of France is", 3, expected_tokens=(7042, 30, 198), expected_text=" Paris.\n")
    assert canary_check(engine_context(llm())) == expected
    same_prompt = canary_check(engine_context(llm(canary={"max_tokens": 3})))
    assert same_prompt == expected


def test_the_services_expected_text_is_asked_beside_the_engines_tokens():
    made = llm(canary={"max_tokens": 2, "expected": " Paris"})
    check = canary_check(engine_context(made))
    assert (check.expected_tokens, check.expected_text, check.max_tokens) == ((7042, 30), " Paris", 2)


def test_more_tokens_than_recorded_begin_with_the_recorded_ones():
    check = canary_check(engine_context(llm(canary={"max_tokens": 8, "expected": " Paris"})))
    assert (check.expected_tokens, check.expected_text, check.max_tokens) == ((7042, 30, 198), " Paris", 8)


def test_fewer_tokens_than_recorded_have_no_recorded_text():
    check = canary_check(engine_context(llm(canary={"max_tokens": 2})))
    assert (check.expected_tokens, check.expected_text) == ((7042, 30), None)


def test_a_text_cut_inside_a_character_is_expected_up_to_that_character():
    recorded = {**ENGINE["canary"], "text": " Paris \ufffd"}
    check = canary_check(engine_context(llm(), engine_manifest={**ENGINE, "canary": recorded}))
    assert check.expected_text == " Paris "


def test_another_prompt_needs_an_expected_text():
    check = canary_check(engine_context(llm(canary={"prompt": "One plus one is", "expected": " two"})))
    assert (check.prompt, check.expected_tokens, check.expected_text) == ("One plus one is", None, " two")
    with pytest.raises(ToolkitError, match="no recorded answer") as caught:
        canary_check(engine_context(llm(canary={"prompt": "One plus one is"})))
    assert caught.value.where == "services.llm.canary"


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"tp_size": 2}, "services.llm.tp_size"),
        ({"gpus": 2}, "services.llm.gpus"),
        ({"attention": "fa2"}, "services.llm.attention"),
        ({"options": {"max_que": 1}}, "services.llm.options.max_que"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "services.llm.env.CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_it_does_not_offer_is_refused_where_it_was_asked(keys: dict[str, Any], where: str):
    TorchRuntime().check("llm", llm())
    with pytest.raises(ToolkitError) as caught:
        TorchRuntime().check("llm", llm(**keys))
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize(("built_for", "assignment"), [("cuda", CPUS), ("cpu", GPU)])
def test_an_engine_for_another_device_is_refused(built_for: str, assignment):
    with pytest.raises(ToolkitError, match=f"compiled for {built_for}"):
        launch(llm(), assignment, engine_manifest={**ENGINE, "device": built_for})


def test_fmha_of_the_service_must_be_that_of_the_recipe():
    with pytest.raises(ToolkitError, match="fmha: disable"):
        launch(llm(fmha="disable"))
    assert launch(llm(fmha="enable"))


def test_listening_to_the_world_is_possible_and_said():
    made = launch(llm(host="0.0.0.0"))
    assert flag(made.argv, "--host") == "0.0.0.0"
    assert any("whoever reaches this machine" in note for note in made.notes)
    assert launch(llm()).notes == ()


def test_gpu_memory_without_a_gpu_is_said_to_have_no_effect():
    assert launch(llm(gpu_memory="4GiB")).notes == ("gpu_memory has no effect without a GPU",)


def test_an_engine_that_shares_prefixes_is_asked_the_recorded_set_by_its_tokens():
    found = CanarySet((CanaryPrompt("cached", "long", 2, 65, "kv_cache_reuse"),), {}, 0.0, "none")
    probes = launch(llm(), reference=canaries.to_document(found)).probes
    assert probes.canary_set == found
    assert probes.generation is not None
    assert probes.generation.token_ids
    assert launch(llm()).probes.canary_set is None
