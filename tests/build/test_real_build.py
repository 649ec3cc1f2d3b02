"""Real compiles of a tiny decoder: the whole of ``builder: torch``, nothing stood in for."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.serve import decoders
from toolkit.build import BuiltEngine, ensure
from toolkit.config import load
from toolkit.errors import ToolkitError
from toolkit.serve.compiled import CompiledEngine
from toolkit.serve.verify_engine import greedy
from toolkit.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
LIMITS = "limits: {max_batch_size: 3, max_input_len: 32, max_seq_len: 64}\n"
RECIPE = "version: 1\nname: tiny\nbuilder: torch\nmodel: model\n" + LIMITS
FUSED_AGAIN = "fmha: disable\noptions: {inductor: {pattern_matcher: true}}\n"


class Tiny:
    """A model of random weights, and a store to build it into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = decoders.save(folder / "model")
        self.store = Store(folder / "home")

    def build(self, text: str = "") -> BuiltEngine:
        path = self.folder / "recipe.yaml"
        path.write_text(RECIPE + text)
        return ensure(load.recipe(path), Path(sys.executable), self.store)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=["enable", "disable"])
def built(request: pytest.FixtureRequest, tiny: Tiny) -> BuiltEngine:
    return tiny.build(f"fmha: {request.param}\n")


def plain(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def test_what_was_asked_is_what_is_in_the_package(built: BuiltEngine) -> None:
    assert built.fmha["built"] == built.fmha["asked"]
    calls = built.fmha["proof"].count("scaled_dot_product")
    assert calls == (2 if built.fmha["asked"] == "enable" else 0)


def test_weights_are_beside_the_packages_not_inside(built: BuiltEngine) -> None:
    names = {path.name for path in built.path.iterdir()}
    assert {"engine.json", "prefill.pt2", "decode.pt2", "model.safetensors", "tokenizer.json", "manifest.json"} <= names
    weights = (built.path / "model.safetensors").read_bytes()
    sample = weights[-4096:]
    assert all(sample not in (built.path / f"{phase}.pt2").read_bytes() for phase in ("prefill", "decode"))


@pytest.mark.parametrize("length", [1, 2, 3, 17, 32])
def test_the_engine_answers_as_plain_transformers_for_every_length(length: int, built: BuiltEngine, tiny: Tiny) -> None:
    engine = CompiledEngine.load(built.path, "cpu")
    tokens = [(7 * n) % decoders.VOCAB for n in range(length)]
    torch.testing.assert_close(engine.prefill(1, tokens), plain(tiny.model, tokens), rtol=1e-4, atol=1e-4)
    for step in range(3):
        tokens.append(11 + step)
        torch.testing.assert_close(engine.decode([1], [11 + step])[0], plain(tiny.model, tokens), rtol=1e-4, atol=1e-4)


def test_every_batch_size_and_every_length_up_to_the_last_position_runs(built: BuiltEngine, tiny: Tiny) -> None:
    engine = CompiledEngine.load(built.path, "cpu")
    for slots in ([0], [0, 1], [2], [0, 2], [0, 1, 2]):
        tokens = greedy(engine, slots, [5, 6, 7], 61)
        assert all(row == tokens[0] for row in tokens)
        assert tokens[0][-1] == int(plain(tiny.model, [5, 6, 7, *tokens[0][:-1]]).argmax())


def test_a_fresh_process_loads_it_without_any_compiler(built: BuiltEngine) -> None:
    code = (
        "import sys; from pathlib import Path; from toolkit.serve.compiled import CompiledEngine\n"
        f"engine = CompiledEngine.load(Path({str(built.path)!r}), 'cpu')\n"
        "[engine.run_shape(key) for key in engine.shapes('full')]\n"
        "heavy = {'torch._inductor', 'torch._dynamo', 'sympy', 'transformers', 'triton'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_compiler_that_fuses_again_is_caught_and_nothing_is_published(tiny: Tiny) -> None:
    before = {entry.fingerprint for entry in tiny.store.entries()}
    with pytest.raises(ToolkitError, match="put fused attention back") as caught:
        tiny.build(FUSED_AGAIN)
    assert any("scaled_dot_product" in line for line in caught.value.details["evidence"])
    assert {entry.fingerprint for entry in tiny.store.entries()} == before


def test_the_second_build_is_reused(built: BuiltEngine, tiny: Tiny) -> None:
    again = tiny.build(f"fmha: {built.fmha['asked']}\n")
    assert again.reused
    assert again.path == built.path


@pytest.mark.parametrize("limit_bytes", [10_000, 100_000, 500_000])
def test_a_file_size_limit_is_one_clear_error_and_leaves_nothing_that_looks_built(
    limit_bytes: int, tiny: Tiny, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("model: model", f"model: {tiny.folder / 'model'}"))
    code = (
        "import sys, json; from pathlib import Path\n"
        "from toolkit.build import ensure; from toolkit.config import load; from toolkit.store import Store\n"
        "from toolkit.errors import ToolkitError\n"
        f"try: ensure(load.recipe({str(tmp_path / 'recipe.yaml')!r}), Path(sys.executable),"
        f" Store(Path({str(tmp_path / 'home')!r})))\n"
        "except ToolkitError as e: print(json.dumps({'code': e.code, 'what': e.what}))\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    # A module's cache cut off by the limit would break the next process.
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, preexec_fn=limit,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["code"] == "no_space", done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "home" / "engines").iterdir() if not path.name.startswith(".")] == []


def test_a_package_of_a_broken_build_is_not_published(tiny: Tiny) -> None:
    with pytest.raises(ToolkitError, match="not 'never this'"):
        tiny.build("canary: {prompt: hello, expected: never this}\n")
