from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.build import trtllm_bench
from tests.build.packages import UNFUSED_CALL, archive, library
from toolkit.build import BuiltEngine, describe, ensure, reference
from toolkit.config import load
from toolkit.store import Store

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "version: 1\nname: tiny\nbuilder: torch\nmodel: model\n"


@dataclass
class Bench:
    """A model folder, a recipe, a store, and an interpreter that does as the scenario says."""

    folder: Path
    path: str

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def store(self) -> Store:
        return Store(self.folder / "home")

    def scenario(self, calls: Sequence[str] = (UNFUSED_CALL,), **told: Any) -> None:
        (self.folder / "scenario.json").write_text(json.dumps(told))
        (self.folder / "package.pt2").write_bytes(archive({"w.so": library(self.folder, calls)}))

    def recipe(self, text: str = "") -> load.LoadedRecipe:
        path = self.folder / "recipe.yaml"
        path.write_text(RECIPE + text)
        return load.recipe(path)

    def ensure(self, text: str = "", **keywords: Any) -> BuiltEngine:
        keywords.setdefault("environ", {"PATH": self.path, "SECRET": "hidden"})
        return ensure(self.recipe(text), self.python, self.store, **keywords)

    def describe(self, text: str = "", **keywords: Any) -> BuiltEngine:
        return describe(self.recipe(text), self.python, self.store, environ={"PATH": self.path}, **keywords)

    def calls(self) -> list[dict[str, Any]]:
        path = self.folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def verbs(self) -> list[str]:
        return [call["verb"] for call in self.calls()]


@pytest.fixture(scope="session")
def quick_compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``g++`` that has compiled what it is asked for before; the real one takes seconds for it."""
    folder = tmp_path_factory.mktemp("compiler")
    source, library = folder / "probe.cpp", folder / "probe.so"
    source.write_text('extern "C" int coexist_probe() { return 42; }\n')
    flags = ["-shared", "-fPIC", "-Wl,--no-as-needed", "-o", str(library)]
    subprocess.run([os.environ.get("CXX", "g++"), *flags, str(source)], check=True, capture_output=True)
    script = folder / "g++"
    version = '[ "$1" = --version ] && { echo "g++ of these tests"; exit; }'
    script.write_text(f'#!/bin/sh\n{version}\nfor out; do :; done\nexec cp "{library}" "$out"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def bench(tmp_path: Path, quick_compiler: Path) -> Bench:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "python"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        f"if len(sys.argv) < 3 or not sys.argv[1].endswith('run.py'): os.execv({sys.executable!r}, sys.argv)\n"
        f"sys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\nfrom tests.build import fake_python\n"
        f"sys.exit(fake_python.main(Path({str(tmp_path)!r})))\n"
    )
    script.chmod(0o755)
    made = Bench(tmp_path, f"{quick_compiler}:{os.environ['PATH']}")
    made.scenario()
    return made


@pytest.fixture
def trtllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trtllm_bench.TrtllmBench:
    monkeypatch.setattr(reference, "run_child", lambda argv, env: reference.Outcome(reference.NO_TRANSFORMERS, "", ""))
    return trtllm_bench.make(tmp_path)


@pytest.fixture
def without_compiler(tmp_path: Path) -> Callable[[], dict[str, str]]:
    def environ() -> dict[str, str]:
        folder = tmp_path / "empty"
        folder.mkdir(exist_ok=True)
        assert shutil.which("g++", path=str(folder)) is None
        return {"PATH": str(folder)}

    return environ
