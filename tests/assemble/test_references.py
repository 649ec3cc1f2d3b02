from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit import canaries
from toolkit.assemble import fused_answers, paths
from toolkit.assemble.launches import Engine
from toolkit.assemble.references import World, foresee, of_deployment
from toolkit.build.reference import NO_TRANSFORMERS, Outcome
from toolkit.canaries import Answer, CanaryPrompt, CanarySet, Reference
from toolkit.config import load
from toolkit.errors import ManyFaultsError
from toolkit.home import Home
from toolkit.warm import Proof

SHORT = CanaryPrompt("short", "The capital of France is", 1, 1, "context_fmha", 1)
LONG = CanaryPrompt("chunked", "long", 1, 513, "chunked_prefill", 1)
SET = CanarySet((SHORT,), {"short": Reference((7,), (2.5,), " Paris", (6,))}, 0.4, "transformers 5.0")
GOOD = Outcome(0, json.dumps(canaries.to_document(SET)), "")
LACKS = Outcome(NO_TRANSFORMERS, "", "")


class Child:
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[Sequence[str]] = []

    def __call__(self, argv: Sequence[str], env: Mapping[str, str]) -> Outcome:
        self.asked.append(argv)
        return self.outcome

    def flag(self, name: str) -> str:
        return str(self.asked[0][list(self.asked[0]).index(name) + 1])


def refusal(made: Callable[[], object]) -> str | None:
    try:
        made()
    except ManyFaultsError as refused:
        return str(refused)
    return None


class Bench:
    """One deployment of one service, with a model folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[str] = []
        (folder / "llama").mkdir()
        (folder / "llama" / "config.json").write_text('{"torch_dtype": "bfloat16", "max_position_embeddings": 2048}')
        (folder / "llama" / "model.safetensors").write_bytes(b"weights!")
        (folder / "llm.yaml").write_text(
            "version: 1\nname: llm\nbuilder: trtllm\ncheckpoint: c\nmodel: llama\nconvert_script: s\n"
            "limits: {max_input_len: 512, max_seq_len: 640, max_num_tokens: 512}\n"
        )

    def made(
        self, service: str, child: Child, *, available_bytes: int = 1 << 40, top: str = "", facts: Any = None
    ) -> Mapping[str, Mapping[str, Any]]:
        file = self.folder / "deployment.yaml"
        file.write_text(f"version: 1\nname: two\n{top}services:\n  llm: {{{service}}}\n")
        deployment = load.deployment(file)
        engines = {} if facts is None else {"llm": Engine(self.folder, "f", facts)}
        world = World(self.folder / "references", self.folder / "hashes.json", available_bytes, {}, child)
        self.foreseen = lambda: foresee(deployment, paths.find(deployment), engines, world)
        return of_deployment(deployment, paths.find(deployment), engines, world, self.reports.append)

    def foresee(self, service: str, **keywords: Any) -> str | None:
        """What is refused before anything is made; making it refuses at least that."""
        late = refusal(lambda: self.made(service, Child(LACKS), **keywords))
        early = refusal(self.foreseen)
        assert early in (None, late)
        return early

    def refused(self, service: str, child: Child, **keywords: Any) -> Any:
        with pytest.raises(ManyFaultsError) as caught:
            self.made(service, child, **keywords)
        (fault,) = caught.value.errors
        assert "deployment.yaml:" in str(fault.where)
        assert "expected" in str(fault.hint)
        return fault


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


ENGINES = "engines: {llm: {recipe: llm.yaml}}\n"
FACTS: dict[str, Any] = {
    "limits": {"max_input_len": 256, "max_seq_len": 640, "max_num_tokens": 128}, "dtype": "float16",
    "plugin_config": {"tokens_per_block": 64},
}  # fmt: skip


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "transformers", "trtllm"])
def test_a_served_model_folder_is_asked_in_its_own_data_type(bench: Bench, runtime: str):
    child = Child(GOOD)
    found = bench.made(f"runtime: {runtime}, model: llama", child)
    assert canaries.of_document(found["llm"]) == SET
    assert child.flag("--model-dir") == str(bench.folder / "llama")
    assert child.flag("--dtype") == "bfloat16"
    assert sum(word.startswith("--prompt=") for word in child.asked[0]) == 3
    assert "recording right answers of llama" in bench.reports[0]


@pytest.mark.parametrize("runtime", ["trtllm", "triton"])
def test_an_engine_is_asked_by_the_model_of_its_recipe_within_its_own_limits(bench: Bench, runtime: str):
    child = Child(GOOD)
    bench.made(f"runtime: {runtime}, engine: llm", child, top=ENGINES, facts=FACTS)
    assert child.flag("--model-dir") == str(bench.folder / "llama")
    assert child.flag("--dtype") == "float16"
    assert (child.flag("--tokens-per-block"), child.flag("--max-input-len")) == ("64", "128")
    assert "--chunked-prefill" not in child.asked[0]


def test_a_written_prompt_is_the_one_that_is_asked(bench: Bench):
    child = Child(GOOD)
    bench.made("runtime: vllm, model: llama, canary: {prompt: Hello}", child)
    assert [word for word in child.asked[0] if word.startswith("--prompt=")] == ["--prompt=Hello"]


def test_an_engine_that_carries_its_set_needs_no_child(bench: Bench):
    carried = CanarySet((SHORT, LONG), {**SET.references, "chunked": Reference((1,), (3.0,), " a", (2,))}, 0.4, "x")
    facts = {**FACTS, "canary_set": canaries.to_document(carried)}
    child = Child(LACKS)
    service = "runtime: trtllm, engine: llm"
    found = canaries.of_document(bench.made(service, child, top=ENGINES, facts=facts)["llm"])
    assert child.asked == []
    assert [prompt.id for prompt in found.prompts] == ["short"]
    chunked = f"{service}, options: {{enable_chunked_prefill: true}}"
    found = canaries.of_document(bench.made(chunked, child, top=ENGINES, facts=facts)["llm"])
    assert [prompt.id for prompt in found.prompts] == ["short", "chunked"]


UNFUSED: dict[str, Any] = {**FACTS, "plugin_config": {"tokens_per_block": 64, "context_fmha": False}}
ENGINE = "runtime: trtllm, engine: llm"


def test_an_unfused_engine_does_not_start_where_nobody_knows_what_is_right(
    bench: Bench,
):
    assert "has no transformers" in bench.refused(ENGINE, Child(LACKS), top=ENGINES, facts=UNFUSED).what
    fault = bench.refused(ENGINE, Child(GOOD), available_bytes=1, top=ENGINES, facts=UNFUSED)
    assert "host memory" in fault.what
    tie = replace(SET, references={"short": Reference((7,), (0.1,), " Paris", (6,))})
    undecided = Child(Outcome(0, json.dumps(canaries.to_document(tie)), ""))
    fault = bench.refused(ENGINE, undecided, top=ENGINES, facts=UNFUSED)
    assert "undecided" in fault.what


NO_MODEL = "version: 1\nname: llm\nbuilder: trtllm\nfmha: disable\ncheckpoint: c\n"


def test_what_nobody_can_know_is_refused_before_an_engine_is_built(bench: Bench):
    (bench.folder / "llm.yaml").write_text(NO_MODEL)
    early = bench.foresee(ENGINE, top=ENGINES)
    assert early is not None
    assert "is not named" in early
    assert "deployment.yaml:5 services.llm" in early


@pytest.mark.parametrize(
    ("service", "keywords"),
    [
        (f"{ENGINE}, options: {{quantization: fp8}}", {}),
        ("runtime: trtllm, model: llama, attention: vanilla", {"available_bytes": 1}),
    ],
)
def test_so_is_what_cannot_be_recorded_here(bench: Bench, service: str, keywords: dict[str, Any]):
    (bench.folder / "llm.yaml").write_text(NO_MODEL + "model: llama\nconvert_script: s\n")
    assert bench.foresee(service, top=ENGINES, **keywords) is not None


@pytest.mark.parametrize(
    "service",
    [
        f'{ENGINE}, canary: {{expected: " Paris"}}',
        "runtime: vllm, model: llama",
        'runtime: command, argv: ["true"]',
    ],
)
def test_nothing_is_foreseen_of_services_that_can_say_what_is_right_or_need_not(bench: Bench, service: str):
    (bench.folder / "llm.yaml").write_text(NO_MODEL)
    assert bench.foresee(service, top=ENGINES if "engine" in service else "") is None


def test_what_only_a_child_can_tell_is_left_to_it(bench: Bench):
    (bench.folder / "llm.yaml").write_text(NO_MODEL + "model: llama\nconvert_script: s\n")
    assert bench.foresee(ENGINE, top=ENGINES) is None


def test_what_was_recorded_needs_no_memory_any_more(bench: Bench):
    service = "runtime: trtllm, model: llama, attention: vanilla"
    bench.made(service, Child(GOOD))
    assert bench.foresee(service, available_bytes=1) is None


def test_an_engine_still_to_be_built_may_be_held_against_a_fused_one_of_its_checkpoint(bench: Bench):
    fused(bench)
    (bench.folder / "llm.yaml").write_text(NO_MODEL)
    assert bench.foresee(ENGINE, top=ENGINES, facts={"checkpoint": "c" * 64}) is None
    assert bench.foresee(ENGINE, top=ENGINES, facts={"checkpoint": "d" * 64}) is not None


@pytest.mark.parametrize("asked", ["fmha: disable", "attention: vanilla"])
def test_a_service_that_asks_for_unfused_attention_must_know_what_is_right(bench: Bench, asked: str):
    bench.refused(f"runtime: trtllm, model: llama, {asked}", Child(LACKS))


def test_without_any_right_answer_repeats_must_agree_and_it_is_warned_with_what_to_write(bench: Bench):
    (bench.folder / "llm.yaml").write_text("version: 1\nname: llm\nbuilder: trtllm\ncheckpoint: c\n")
    found = canaries.of_document(bench.made(ENGINE, Child(GOOD), top=ENGINES, facts=FACTS)["llm"])
    assert found.references == {}
    (said,) = bench.reports
    assert said.startswith("warning: llm: only that repeats agree is proven before READY: its model's folder")
    assert "expected" in said


def test_where_only_expected_is_known_repeats_must_agree_and_that_is_said(bench: Bench):
    service = 'runtime: vllm, model: llama, canary: {expected: " Paris"}'
    found = canaries.of_document(bench.made(service, Child(LACKS))["llm"])
    assert found.references == {}
    assert {prompt.times for prompt in found.prompts} == {2}
    assert [prompt.id for prompt in found.prompts] == ["short", "cached", "shared_prefix"]
    assert found.source == "none: the service says itself what is right"
    assert bench.reports == []


@pytest.mark.parametrize(("reuse", "asked"), [("true", 1), ("false", 0)])
def test_an_engine_of_our_own_is_asked_a_set_where_it_shares_prefixes(bench: Bench, reuse: str, asked: int):
    (bench.folder / "llm.yaml").write_text(
        f"version: 1\nname: llm\nbuilder: torch\nmodel: llama\nkv_cache: {{reuse: {reuse}}}\n"
    )
    child = Child(LACKS)
    found = bench.made("runtime: torch, engine: llm", child, top=ENGINES, facts=FACTS)
    assert (len(child.asked) > 0, len(found)) == (bool(asked), asked)


def fused(bench: Bench, checkpoint: str = "c" * 64) -> None:
    """A fused engine of this checkpoint was proven by its repeats."""
    service = "runtime: trtllm, engine: llm"
    facts = {**FACTS, "checkpoint": checkpoint, "plugin_config": {"tokens_per_block": 64, "context_fmha": True}}
    document = bench.made(service, Child(LACKS), top=ENGINES, facts=facts)["llm"]
    asked = canaries.of_document(document)
    answers = {prompt.id: Answer(f" {prompt.id} of it") for prompt in asked.prompts}
    deployment = load.deployment(bench.folder / "deployment.yaml").model
    engine = Engine(bench.folder, "f" * 64, facts)
    stage = SimpleNamespace(
        deployment=deployment, engines={"llm": engine}, references={"llm": document}, home=Home(bench.folder)
    )
    proof = Proof(None, (), None, None, None, (), 0.0, answers)
    fused_answers.remember(stage, {"llm": proof})  # type: ignore[arg-type]


def test_an_unfused_engine_is_held_against_a_fused_one_of_its_checkpoint(bench: Bench):
    fused(bench)
    facts = {**UNFUSED, "checkpoint": "c" * 64}
    found = canaries.of_document(bench.made(ENGINE, Child(LACKS), top=ENGINES, facts=facts)["llm"])
    assert {name: each.text for name, each in found.references.items()} == {"short": " short"}
    assert found.source == "first words of the fused engine ffffffffffffffff of the same checkpoint"
    assert "right answers are first words of the fused engine" in bench.reports[-1]


def test_a_fused_engine_of_another_checkpoint_says_nothing(bench: Bench):
    fused(bench, "d" * 64)
    bench.refused(ENGINE, Child(LACKS), top=ENGINES, facts={**UNFUSED, "checkpoint": "c" * 64})


def test_answers_of_quantised_models_are_compared_with_nothing(bench: Bench):
    child = Child(GOOD)
    bench.made("runtime: vllm, model: llama, options: {quantization: fp8}", child)
    assert child.asked == []
    assert "it is quantised (quantization fp8)" in bench.reports[-1]


def test_an_environment_inside_an_image_is_left_to_our_own_python(bench: Bench):
    child = Child(GOOD)
    top = "environments: {box: {image: vllm/vllm-openai:v1}}\n"
    bench.made("runtime: vllm, model: llama, environment: box", child, top=top)
    assert [argv[0] for argv in child.asked] == [sys.executable]


def test_services_that_generate_nothing_have_no_set(bench: Bench):
    assert bench.made('runtime: command, argv: ["true"]', Child(GOOD)) == {}
