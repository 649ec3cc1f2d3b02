from __future__ import annotations

from typing import Any

import pytest

from tests.runtimes.conftest import service
from toolkit.canaries import Reach
from toolkit.config.models import Recipe
from toolkit.runtimes.canary_reach import GENERATIVE, Served, chunked_prefill, dtype, quantized, reach

ENGINE: dict[str, Any] = {
    "limits": {"max_input_len": 1024, "max_seq_len": 2048, "max_num_tokens": 512},
    "plugin_config": {"tokens_per_block": 64, "context_fmha": True},
    "dtype": "float16",
}
CONFIG: dict[str, Any] = {"max_position_embeddings": 4096}


def made(runtime: str, **keys: Any) -> Any:
    where = {"engine": "llm"} if runtime in {"trtllm", "triton"} and "model" not in keys else {"model": "m"}
    return service(runtime=runtime, **{**where, **keys})


def test_an_engine_says_itself_how_far_prompts_must_reach():
    served = Served(ENGINE, None, CONFIG)
    chunked = {"enable_chunked_prefill": True}
    assert reach(made("trtllm", options=chunked), served) == Reach(64, 512, 1024, True)


def test_without_chunks_a_prompt_fits_into_one_step():
    assert reach(made("trtllm"), Served(ENGINE, None, CONFIG)) == Reach(64, 512, 512, False)


def test_an_engine_that_is_not_read_yet_is_as_its_recipe_says():
    recipe = Recipe.model_validate({
        "version": 1, "name": "llm", "builder": "trtllm", "checkpoint": "c",
        "limits": {"max_input_len": 100, "max_seq_len": 200, "max_num_tokens": 300},
        "kv_cache": {"tokens_per_block": 16},
    })  # fmt: skip
    assert reach(made("trtllm"), Served(None, recipe)) == Reach(16, 300, 100, False)


def test_nested_options_of_the_server_count():
    options = {"kv_cache_config": {"tokens_per_block": 128}, "max_num_tokens": 256, "max_seq_len": 640}
    served = Served(None, None, CONFIG)
    assert reach(made("trtllm", model="m", options=options), served) == Reach(128, 256, 256, False)


@pytest.mark.parametrize(
    ("runtime", "options", "wanted"),
    [
        ("vllm", {}, Reach(16, 8192, 4088, True)),
        ("vllm", {"max-model-len": 1024, "max_num_batched_tokens": 512}, Reach(16, 512, 1016, True)),
        ("sglang", {"chunked_prefill_size": 256, "context-length": 512}, Reach(32, 256, 504, True)),
        ("transformers", {}, Reach(32, 4096, 4088, False)),
    ],
)
def test_servers_of_a_model_folder_say_it_in_their_options(runtime: str, options: dict[str, Any], wanted: Reach):
    assert reach(made(runtime, options=options), Served(None, None, CONFIG)) == wanted


@pytest.mark.parametrize(
    ("runtime", "options", "chunked"),
    [
        ("vllm", {"enable-chunked-prefill": False}, False),
        ("vllm", {"no_enable_chunked_prefill": True}, False),
        ("sglang", {"chunked-prefill-size": -1}, False),
        ("trtllm", {"enable_chunked_context": "false"}, False),
        ("triton", {"enable_chunked_context": True}, True),
        ("transformers", {}, False),
    ],
)
def test_chunks_are_on_where_the_program_has_them_on_or_they_are_asked_for(
    runtime: str, options: dict[str, Any], chunked: bool
):
    assert chunked_prefill(made(runtime, options=options)) is chunked


@pytest.mark.parametrize("runtime", GENERATIVE)
def test_a_prompt_leaves_room_for_the_answer_that_the_service_asks_for(runtime: str):
    asked = made(runtime, model="m", canary={"max_tokens": 100})
    assert reach(asked, Served(None, None, {"max_position_embeddings": 512})).max_input_len == 412


def test_the_data_type_is_the_engines_else_the_options_else_that_of_the_weights():
    assert dtype(made("trtllm"), Served(ENGINE), "bfloat16") == "float16"
    assert dtype(made("vllm", options={"dtype": "half"}), Served(), "bfloat16") == "float16"
    assert dtype(made("vllm"), Served(), "bfloat16") == "bfloat16"
    assert dtype(made("vllm", options={"dtype": "auto"}), Served(), "float32") == "float32"


@pytest.mark.parametrize(
    ("options", "served", "how"),
    [
        ({}, Served({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}), "FP8"),
        ({}, Served({"quantization": {"quant_algo": None}}), None),
        ({}, Served(None, None, {"quantization_config": {"quant_method": "awq"}}), "awq"),
        ({"quantization": "fp8"}, Served(), "quantization fp8"),
        ({"kv_cache_dtype": "fp8_e5m2"}, Served(), "kv-cache-dtype fp8_e5m2"),
        ({"kv_cache_dtype": "auto"}, Served(), None),
        ({}, Served(), None),
    ],
)
def test_quantised_models_are_known_for_their_answers_may_differ(options: dict[str, Any], served: Served, how: Any):
    assert quantized(made("vllm", options=options), served) == how
