from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.build.children import Child
from toolkit.build.reference import NO_TRANSFORMERS, Outcome, ensure, run_child
from toolkit.errors import ToolkitError

PROMPT = "The capital of France is"
MADE = {"prompt": PROMPT, "vector": [0.6, 0.8], "source": "transformers 5.0"}
SERVICE, OURS = Path("/opt/service/bin/python"), Path("/opt/coexist/bin/python")
GOOD = Outcome(0, json.dumps(MADE), "")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "minilm"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def made(model: Path, child: Child, prompt: str = PROMPT, pythons: Sequence[Path] = (SERVICE, OURS)):
    return ensure(model, prompt, pythons, model.parent / "references", environ={"HOME": "/h", "TOKEN": "x"}, run=child)


def test_the_services_own_python_makes_it_on_the_cpu_without_the_parents_secrets(model: Path):
    child = Child(GOOD)
    assert made(model, child) == MADE
    argv, env = child.asked[0]
    assert argv[0] == str(SERVICE)
    assert argv[2:] == ["reference", "--model-dir", str(model), "--prompt", PROMPT]
    assert (env["CUDA_VISIBLE_DEVICES"], env["HOME"], env.get("TOKEN")) == ("", "/h", None)


def test_it_is_made_once_for_a_model_and_a_prompt(model: Path):
    made(model, Child(GOOD))
    assert made(model, Child()) == MADE


def test_another_content_of_the_folder_is_another_model(model: Path):
    made(model, Child(GOOD))
    (model / "model.safetensors").write_bytes(b"other weights")
    child = Child(GOOD)
    made(model, child)
    assert len(child.asked) == 1


def test_another_prompt_is_asked_anew(model: Path):
    made(model, Child(GOOD))
    other = {**MADE, "prompt": "hello"}
    assert made(model, Child(Outcome(0, json.dumps(other), "")), "hello") == other


@pytest.mark.parametrize("damage", ["{", "[]", "{}", json.dumps({**MADE, "prompt": "hello"})])
def test_a_record_that_says_something_else_is_not_believed(model: Path, damage: str):
    made(model, Child(GOOD))
    (record,) = (model.parent / "references").iterdir()
    record.write_text(damage)
    assert made(model, Child(GOOD)) == MADE


def test_the_next_python_is_asked_where_transformers_is_missing(model: Path):
    child = Child(Outcome(NO_TRANSFORMERS, "", "error: transformers is not installed"), GOOD)
    assert made(model, child) == MADE
    assert [argv[0] for argv, _ in child.asked] == [str(SERVICE), str(OURS)]


def test_without_transformers_anywhere_our_own_encoder_makes_it_in_the_services_python(model: Path):
    missing = Outcome(NO_TRANSFORMERS, "", "")
    own = {**MADE, "source": "coexist"}
    child = Child(missing, missing, Outcome(0, json.dumps(own), ""))
    assert made(model, child) == own
    assert child.asked[2][0][0] == str(SERVICE)
    assert child.asked[2][0][-1] == "--own"


def test_a_failing_child_is_told_by_its_last_line_and_leaves_no_record(model: Path):
    with pytest.raises(ToolkitError, match="of this model: the pooling is odd") as caught:
        made(model, Child(Outcome(1, "", "Loading weights\nerror: the pooling is odd\n")))
    assert caught.value.where == str(model)
    assert not (model.parent / "references").exists()


@pytest.mark.parametrize("output", ["", "{", "[]", '{"vector": []}', json.dumps({**MADE, "vector": ["x"]})])
def test_an_answer_without_a_vector_is_no_reference(model: Path, output: str):
    with pytest.raises(ToolkitError, match="holds no vector"):
        made(model, Child(Outcome(0, output, "")))


def test_a_missing_model_folder_is_named(tmp_path: Path):
    with pytest.raises(ToolkitError, match="no such folder"):
        ensure(tmp_path / "none", PROMPT, (SERVICE,), tmp_path / "references", run=Child())


def test_a_child_hears_its_own_environment_only():
    code = "import os, sys; sys.stdout.write(repr(sorted(os.environ))); sys.stderr.write('e'); sys.exit(3)"
    outcome = run_child([sys.executable, "-c", code], {"ONLY": "1", "LC_CTYPE": "C.UTF-8"})
    assert outcome == Outcome(3, "['LC_CTYPE', 'ONLY']", "e")


def test_a_python_that_does_not_exist_is_named(model: Path):
    with pytest.raises(ToolkitError) as caught:
        ensure(model, PROMPT, (model / "python",), model.parent / "references")
    assert caught.value.where == str(model / "python")
