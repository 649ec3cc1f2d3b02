from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.build.children import Child
from toolkit import canaries
from toolkit.build.answers import Asked, ensure, float32_bytes, key, stored_dtype
from toolkit.build.reference import NO_TRANSFORMERS, Outcome
from toolkit.canaries import CanaryPrompt, CanarySet, Reach, Reference
from toolkit.errors import ToolkitError

SERVICE, OURS = Path("/opt/service/bin/python"), Path("/opt/coexist/bin/python")
SET = CanarySet(
    (CanaryPrompt("short", "The capital of France is", 1, 1, "context_fmha", 1),),
    {"short": Reference((7,), (2.5,), " Paris", (6,))},
    0.4,
    "transformers 5.0, float32 on the CPU",
)
MADE = {**canaries.to_document(SET), "measured": {"dtype": "bfloat16"}}
GOOD = Outcome(0, json.dumps(MADE), "")
LACKS = Outcome(NO_TRANSFORMERS, "", "")
PLENTY = 1 << 40


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    (folder / "model.safetensors").write_bytes(b"weights!")
    return folder


def asked(model: Path, **changes: Any) -> Asked:
    known: dict[str, Any] = {
        "prompts": ("The capital of France is",), "max_tokens": 8, "reach": Reach(32, 512, 2048, True),
        "dtype": "bfloat16",
    }  # fmt: skip
    return Asked(model, **{**known, **changes})


def made(wanted: Asked, child: Child, *, available_bytes: int = PLENTY) -> Mapping[str, Any]:
    folder = wanted.model_dir.parent / "references"
    environ = {"HOME": "/h", "TOKEN": "x"}
    return ensure(wanted, (SERVICE, OURS), folder, available_bytes=available_bytes, environ=environ, run=child)


def refused(wanted: Asked, child: Child, **keywords: Any) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        made(wanted, child, **keywords)
    assert caught.value.code == "no_reference"
    assert "expected" in str(caught.value.hint)
    return caught.value


def test_the_services_own_python_records_the_set_on_the_cpu_without_the_parents_secrets(model: Path):
    child = Child(GOOD)
    assert canaries.of_document(made(asked(model), child)) == SET
    argv, env = child.asked[0]
    assert argv[0] == str(SERVICE)
    assert argv[2:] == [
        *("answers", "--model-dir", str(model), "--dtype", "bfloat16", "--prompt=The capital of France is"),
        *("--max-tokens", "8", "--tokens-per-block", "32", "--max-num-tokens", "512", "--max-input-len", "2048"),
        *("--budget-s", "240.0", "--chunked-prefill"),
    ]
    assert (env["CUDA_VISIBLE_DEVICES"], env["HOME"], env.get("TOKEN")) == ("", "/h", None)


def test_it_is_recorded_once(model: Path):
    first = made(asked(model), Child(GOOD))
    assert made(asked(model), Child()) == first


@pytest.mark.parametrize(
    "changes",
    [{"prompts": ("Hello",)}, {"max_tokens": 4}, {"dtype": "float16"}, {"reach": Reach(64, 512, 2048, True)}],
)
def test_other_prompts_limits_and_types_are_recorded_anew(model: Path, changes: dict[str, Any]):
    assert key(asked(model), None) != key(asked(model, **changes), None)


def test_another_content_of_the_folder_is_another_model(model: Path):
    before = key(asked(model), None)
    (model / "model.safetensors").write_bytes(b"others!!")
    assert key(asked(model), None) != before


def test_a_python_without_transformers_or_that_fails_leaves_it_to_the_next(model: Path):
    child = Child(LACKS, GOOD)
    made(asked(model), child)
    assert [argv[0] for argv, _ in child.asked] == [str(SERVICE), str(OURS)]
    (model / "model.safetensors").write_bytes(b"others!!")
    made(asked(model), Child(OSError(2, "No such file"), GOOD))


def test_why_nothing_can_be_recorded_is_told_with_what_to_write(model: Path):
    error = refused(asked(model), Child(LACKS, Outcome(1, "", "Traceback\nerror: no such architecture\n")))
    assert "/opt/service/bin/python has no transformers" in error.what
    assert "transformers of /opt/coexist/bin/python: no such architecture" in error.what


@pytest.mark.parametrize("output", ["", "{}", "[]", "Loading\n{}", json.dumps({**MADE, "prompts": [{"id": 3}]})])
def test_an_answer_that_is_no_set_is_none(model: Path, output: str):
    refused(asked(model), Child(Outcome(0, output, ""), LACKS))


@pytest.mark.parametrize("damage", ["{", "[]", "{}", "null"])
def test_a_damaged_record_is_made_again(model: Path, damage: str):
    first = made(asked(model), Child(GOOD))
    (record,) = (model.parent / "references").iterdir()
    record.write_text(damage)
    assert made(asked(model), Child(GOOD)) == first


def test_a_model_that_does_not_fit_in_float32_starts_no_child(model: Path):
    error = refused(asked(model), Child(), available_bytes=1 << 20)
    assert "of host memory in float32" in error.what
    assert "1.0 MiB are available" in error.what


def test_a_folder_without_weights_starts_no_child(model: Path):
    (model / "model.safetensors").unlink()
    assert "no weights" in refused(asked(model), Child()).what


@pytest.mark.parametrize(
    ("config", "dtype", "wanted_bytes"),
    [
        ('{"torch_dtype": "bfloat16"}', "bfloat16", 16),
        ('{"dtype": "float32"}', "float32", 8),
        ('{"text_config": {"dtype": "float16"}}', "float16", 16),
        ("{}", "bfloat16", 16),
        ("[]", "bfloat16", 16),
    ],
)
def test_memory_is_counted_in_float32(model: Path, config: str, dtype: str, wanted_bytes: int):
    (model / "config.json").write_text(config)
    assert (stored_dtype(model), float32_bytes(model)) == (dtype, wanted_bytes)


@pytest.mark.slow
def test_plain_transformers_record_a_set_that_reaches_blocks_and_chunks_of_a_real_model(tmp_path: Path):
    model = Path(__file__).resolve().parents[2] / "models" / "smollm2-135m-instruct"
    wanted = asked(model, prompts=("The capital of France is", "One, two, three, four,"))
    document = ensure(wanted, [Path(sys.executable)], tmp_path, available_bytes=PLENTY)
    found = canaries.of_document(document)
    assert [prompt.id for prompt in found.prompts] == ["short", "cached", "shared_prefix", "chunked"]
    for prompt in found.prompts:
        reference = found.references[prompt.id]
        assert document["measured"]["prompt_tokens"][prompt.id] >= prompt.min_tokens
        assert len(reference.tokens) == len(reference.margins) == len(reference.ends) == prompt.max_tokens
        assert reference.ends[-1] == len(reference.text)
        assert reference.margins[0] > found.bound
    assert found.references["short"].text.startswith(" Paris")
    assert found.references["cached"].text.startswith(" silver river")
    assert found.references["shared_prefix"].text.startswith(" golden mountain")
    assert 0.1 < found.bound < 1.0
