from __future__ import annotations

from typing import Any

import pytest

from tests.runtimes.conftest import CPUS, GPU, flag, model_context, service
from toolkit.errors import ToolkitError
from toolkit.runtimes.flash import MIN_COSINE, FlashRuntime, canary_prompt

REFERENCE = {"prompt": "The capital of France is", "vector": [0.6, 0.8], "source": "transformers 5.0"}


def embed(**keys: Any):
    return service(**{"runtime": "flash", "model": "models/minilm", **keys})


def launch(made, assignment=CPUS, **changes: Any):
    return FlashRuntime().launch(model_context(made, **{"reference": REFERENCE, **changes}), assignment)


def test_the_frontend_is_started_on_the_model_folder():
    made = launch(embed(attention="sdpa"))
    assert made.argv[2] == "frontend"
    assert flag(made.argv, "--model-dir") == "/models/minilm"
    assert flag(made.argv, "--attention") == "sdpa"
    assert flag(made.argv, "--device") == "cpu"
    assert made.notes == ()


def test_on_a_gpu_its_memory_is_bounded_by_the_plan():
    argv = launch(embed(gpus=1), GPU).argv
    assert (flag(argv, "--device"), flag(argv, "--memory-bytes")) == ("cuda", str(4 << 30))


def test_the_canary_is_the_recorded_vector():
    check = launch(embed()).probes.canary
    assert check is not None
    assert (check.prompt, check.expected_vector, check.min_cosine) == (REFERENCE["prompt"], (0.6, 0.8), MIN_COSINE)


def test_without_a_recorded_vector_no_answer_is_known():
    check = launch(embed(canary={"prompt": "hello"}), reference=None).probes.canary
    assert check is not None
    assert (check.prompt, check.expected_vector) == ("hello", None)


def test_requests_ask_for_embeddings_of_the_folders_model():
    generation = launch(embed()).probes.generation
    assert generation is not None
    assert (generation.kind, generation.path, generation.model) == ("embeddings", "/v1/embeddings", "minilm")


def test_a_reference_of_our_own_encoder_is_said_to_be_one():
    assert "own encoder" in launch(embed(), reference={**REFERENCE, "source": "coexist"}).notes[0]


@pytest.mark.parametrize(("canary", "prompt"), [({}, "The capital of France is"), ({"prompt": "hello"}, "hello")])
def test_the_prompt_to_record_is_the_services(canary: dict[str, str], prompt: str):
    assert canary_prompt(embed(canary=canary)) == prompt
    assert canary_prompt(embed()) == "The capital of France is"


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"attention": "fa2"}, "services.embed.attention"),
        ({"fmha": "disable"}, "services.embed.fmha"),
        ({"canary": {"expected": " Paris"}}, "services.embed.canary.expected"),
        ({"options": {"x": 1}}, "services.embed.options.x"),
        ({"pp_size": 2}, "services.embed.pp_size"),
    ],
)
def test_what_it_does_not_offer_is_refused_where_it_was_asked(keys: dict[str, Any], where: str):
    FlashRuntime().check("embed", embed())
    FlashRuntime().check("embed", embed(attention="fa2", gpus=1))
    with pytest.raises(ToolkitError) as caught:
        FlashRuntime().check("embed", embed(**keys))
    assert caught.value.where == where
