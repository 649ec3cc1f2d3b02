from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.conftest import Faults, Write
from toolkit.config import load
from toolkit.config.models import Canary, HttpRequest
from toolkit.errors import ManyFaultsError, ToolkitError

ROOT = Path(__file__).resolve().parents[2]

RAG_NODE = """\
version: 1
name: rag-node
environments:                      # one Python environment per role that needs its own
  trtllm: {python: /opt/trtllm/bin/python}
  flash:  {python: /opt/flash/bin/python}
engines:
  llm: {recipe: engines/llama-3.1-8b.yaml, environment: trtllm}
services:
  llm:
    runtime: trtllm
    engine: llm
    environment: trtllm
    gpus: 2
    tp_size: 2
    nvlink: required
    gpu_memory: 60GiB
    cpus: 8
    port: 8001
    canary: {prompt: "The capital of France is", max_tokens: 8, expected: " Paris"}
    late_compile: warn
    restart: {max_restarts: 5, window: 10min}
    env: {HF_HUB_OFFLINE: "1"}
    options: {}
  embed:
    runtime: flash
    model: models/minilm
    environment: flash
    attention: auto
    gpus: {count: 1, share: true}
    gpu_memory: 4GiB
    port: 8002
    after: [llm]
    requires: []
    warmup: full
"""

LLAMA_RECIPE = """\
version: 1
name: llama-3.1-8b
builder: trtllm
model: models/llama-3.1-8b
checkpoint: models/llama-3.1-8b-trtllm
convert_script: examples/llama/convert_checkpoint.py
tp_size: 2
pp_size: 1
fmha: enable
dtype: bfloat16
limits: {max_batch_size: 64, max_input_len: 2048, max_seq_len: 4096, max_num_tokens: 8192}
kv_cache: {type: paged, tokens_per_block: 32, reuse: false}
canary: {prompt: "The capital of France is", max_tokens: 8}
options: {gemm_plugin: auto}
"""


def test_a_full_deployment_loads_as_written(write: Write) -> None:
    loaded = load.deployment(write(RAG_NODE))
    llm, embed = loaded.model.services["llm"], loaded.model.services["embed"]
    assert llm.gpus.size == llm.tp_size == 2
    assert llm.gpu_memory == 60 * 2**30
    assert llm.restart.window == 600.0
    assert isinstance(llm.canary, Canary)
    assert llm.canary.expected == " Paris"
    assert embed.gpus.share
    assert embed.after == ("llm",)


def test_a_full_recipe_loads_as_written(write: Write) -> None:
    recipe = load.recipe(write(LLAMA_RECIPE)).model
    assert recipe.limits.max_num_tokens == 8192
    assert recipe.options == {"gemm_plugin": "auto"}


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.name)
def test_every_deployment_of_the_repository_loads(file: Path) -> None:
    loaded = load.deployment(file)
    for engine in loaded.model.engines.values():
        assert load.recipe(load.resolve(loaded.file, engine.recipe)).model.version == 1


@pytest.mark.parametrize("file", sorted((ROOT / "engines").glob("*.yaml")), ids=lambda file: file.name)
def test_every_recipe_of_the_repository_loads(file: Path) -> None:
    assert load.recipe(file).model.name == file.stem


def test_where_names_file_line_and_key_path(write: Write) -> None:
    loaded = load.deployment(write(RAG_NODE))
    assert loaded.where("services.llm.gpus") == f"{loaded.file}:13 services.llm.gpus"
    assert loaded.where("services.embed.after[0]") == f"{loaded.file}:32 services.embed.after[0]"


def test_where_of_a_key_that_is_not_written_is_the_line_of_its_entry(write: Write) -> None:
    loaded = load.deployment(write(RAG_NODE))
    assert loaded.where("services.embed.cpus") == f"{loaded.file}:24 services.embed.cpus"


def test_all_faults_are_told_at_once_in_file_order(faults: Faults) -> None:
    told = faults("""\
        version: 2
        name: node
        environments: {trtllm: {python: /x}}
        engines: {llm: {recipe: r.yaml, environment: trt}}
        services:
          llm:
            runtime: torhc
            engine: lmm
            port: 99999
            after: [embed]
            gpuz: 1
          embed:
            runtime: flash
            after: [llm, embd]
        """)
    runtimes = "'trtllm', 'triton', 'vllm', 'sglang', 'transformers', 'torch', 'flash' or 'command'"
    assert told == [
        "node.yaml:1 version: version 2 is not known. This release reads version 1.",
        "node.yaml:4 engines.llm.environment: no environment is named 'trt'. Did you mean 'trtllm'?",
        f"node.yaml:7 services.llm.runtime: 'torhc' is none of {runtimes}. Did you mean 'torch'?",
        "node.yaml:8 services.llm.engine: no engine is named 'lmm'. Did you mean 'llm'?",
        "node.yaml:9 services.llm.port: 99999 is too large; it is at most 65535",
        "node.yaml:10 services.llm.after: 'after' goes round in a circle: llm -> embed -> llm. Break it at one place.",
        "node.yaml:11 services.llm.gpuz: unknown key 'gpuz'. Did you mean 'gpus'?",
        "node.yaml:12 services.embed: runtime 'flash' serves a model folder; 'model' is missing. Write 'model: PATH'.",
        "node.yaml:14 services.embed.after[1]: no service is named 'embd'. Did you mean 'embed'?",
    ]


def test_one_fault_is_the_error_itself(write: Write) -> None:
    file = write("version: 1\nname: a\nservices: {a: {runtime: command, argv: [x], port: none}}\n")
    with pytest.raises(ManyFaultsError) as caught:
        load.deployment(file)
    assert caught.value.what == "'none' is not a whole number"
    assert caught.value.where == f"{file}:3 services.a.port"
    assert caught.value.exit_code == 1


def test_a_canary_is_a_prompt_or_a_request_by_its_keys(write: Write) -> None:
    text = "version: 1\nname: a\nservices: {a: {runtime: command, argv: [x], canary: %s}}\n"
    by_prompt = load.deployment(write(text % "{expected: hi}")).model.services["a"].canary
    by_request = load.deployment(write(text % "{path: /health, contains: ok}")).model.services["a"].canary
    assert isinstance(by_prompt, Canary)
    assert isinstance(by_request, HttpRequest)


def test_a_recipe_given_as_deployment_is_named_as_such(write: Write) -> None:
    with pytest.raises(ToolkitError, match="is a recipe, not a deployment"):
        load.deployment(write(LLAMA_RECIPE))
    with pytest.raises(ToolkitError, match="is a deployment, not a recipe"):
        load.recipe(write(RAG_NODE))


def test_kind_tells_deployments_and_recipes_apart(write: Write) -> None:
    assert load.kind(write(RAG_NODE)) == "deployment"
    assert load.kind(write(LLAMA_RECIPE)) == "recipe"
    with pytest.raises(ToolkitError, match="neither a deployment"):
        load.kind(write("a: 1\n"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "a list where 'key: value' lines belong"),
        ("just words\n", "'just words' where 'key: value' lines belong"),
    ],
)
def test_a_file_without_keys_is_refused(write: Write, text: str, says: str) -> None:
    with pytest.raises(ToolkitError, match=says):
        load.deployment(write(text))


def test_a_path_is_looked_for_beside_the_file_then_above_it_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, here = tmp_path / "repo" / "configs" / "node.yaml", tmp_path / "here"
    for folder in (base.parent / "beside", tmp_path / "repo" / "above", here / "cwd", here / "beside"):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    assert load.resolve(base, Path("beside")) == base.parent / "beside"
    assert load.resolve(base, Path("above")) == tmp_path / "repo" / "above"
    assert load.resolve(base, Path("cwd")) == here / "cwd"
    assert load.resolve(base, tmp_path) == tmp_path


def test_a_missing_path_lists_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path / "configs" / "node.yaml"
    with pytest.raises(ToolkitError) as caught:
        load.resolve(base, Path("models/x"), "node.yaml:9 services.llm.model")
    assert caught.value.where == "node.yaml:9 services.llm.model"
    places = (tmp_path / place / "models/x" for place in ("configs", "", "here"))
    assert caught.value.hint == f"Looked for {', '.join(str(place) for place in places)}."


def test_a_missing_absolute_path_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        load.resolve(tmp_path / "node.yaml", tmp_path / "gone")
    assert caught.value.hint == "Put it there, or name what you have."


def test_a_missing_path_names_the_nearest_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "models" / "all-minilm-l6-v2").mkdir(parents=True)
    with pytest.raises(ToolkitError) as caught:
        load.resolve(tmp_path / "node.yaml", tmp_path / "models" / "all-minilm")
    assert caught.value.hint == f"Did you mean '{tmp_path / 'models' / 'all-minilm-l6-v2'}'?"


KEYS = ["version", "name", "services", "engines", "environments", "llm", "runtime", "engine", "model", "gpus", "cpus"]
WORDS = ["1", "auto", "torch", "60GiB", "[", "]", "{", "}", "&a", "*a", "<<", "!!int", "!x", "\t", "---", '"', "'", "|"]
FRAGMENTS = st.sampled_from([f"{key}: " for key in KEYS] + WORDS + ["\n", "\n  ", "\n    ", "- ", ": ", ", ", "#"])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(), st.lists(FRAGMENTS, max_size=30).map("".join), st.just('"\\UFFFFFFFF"')))
def test_any_text_is_a_deployment_or_a_toolkit_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    for read in (load.deployment, load.recipe, load.kind):
        _returns_or_refuses(lambda read=read: read(file))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)
SERVICE_KEYS = ["runtime", "engine", "gpus", "cpus", "canary", "env", "after", "tp_size", "port", "restart", "argv"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(service=st.dictionaries(st.sampled_from(SERVICE_KEYS), JSON), rest=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_data_is_a_deployment_or_a_toolkit_error_without_pydantics_words(
    tmp_path: Path, service: dict[str, object], rest: dict[str, object]
) -> None:
    file = tmp_path / "any.yaml"
    file.write_text(yaml.safe_dump({"services": {"llm": service}, **rest}), encoding="utf-8")
    told = _returns_or_refuses(lambda: load.deployment(file))
    assert "Input should" not in told
    assert "pydantic" not in told


def _returns_or_refuses(action: Callable[[], object]) -> str:
    try:
        action()
    except ToolkitError as error:
        return str(error)
    return ""


def test_a_file_that_may_not_be_read_is_refused(write: Write) -> None:
    file = write(RAG_NODE)
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ToolkitError, match="cannot be read: Permission denied"):
        load.deployment(file)


@pytest.mark.parametrize(("line", "found"), [("", "kill"), ("on_supervisor_death: keep\n", "keep")])
def test_services_die_with_their_supervisor_unless_the_file_says_otherwise(write: Write, line: str, found: str) -> None:
    file = write(f"version: 1\nname: a\n{line}services: {{a: {{runtime: vllm, model: m}}}}\n")
    assert load.deployment(file).model.on_supervisor_death == found


def test_another_wish_for_that_is_refused_with_what_is_possible(faults: Faults) -> None:
    (told,) = faults("version: 1\nname: a\non_supervisor_death: stop\nservices: {a: {runtime: vllm, model: m}}\n")
    assert "on_supervisor_death" in told
    assert "keep" in told
