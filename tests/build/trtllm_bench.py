"""An environment with a stand-in for trtllm-build, a checkpoint, a model, and recipes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.build import BuiltEngine, trtllm_builder
from toolkit.build.foreign import Patience
from toolkit.build.trtllm_checkpoint import read
from toolkit.build.trtllm_options import Asked, Chosen, choose
from toolkit.build.trtllm_versions import build_release
from toolkit.config import load
from toolkit.store import Store

ROOT = Path(__file__).resolve().parents[2]
LIMITS = "limits: {max_batch_size: 8, max_input_len: 512, max_seq_len: 1024, max_num_tokens: 4096}\n"
RECIPE = f"version: 1\nname: tiny\nbuilder: trtllm\n{LIMITS}"
# Every release of the lines that build engines, and what lies between those that were read.
RELEASES = (
    *("0.8.0", "0.9.0", "0.10.0", "0.11.0", "0.12.0", "0.13.0", "0.14.0", "0.15.0", "0.16.0", "0.17.0"),
    *("0.18.0", "0.18.1", "0.18.2", "0.19.0", "0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1"),
    *(f"1.3.0rc{number}" for number in range(21)),
)
IMPATIENT = Patience(idle_s=0.8, silent_s=60.0, look_s=0.1)


@dataclass
class TrtllmBench:
    """Everything under one folder; the environment is a folder with ``bin`` and its packages' metadata."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    @property
    def store(self) -> Store:
        return Store(self.folder / "home")

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), "SECRET": "hidden"}

    def install(self, release: str, fail: str | None = None, **settings: Any) -> None:
        """The environment now holds this release, whose trtllm-build fails as named."""
        packages = self.folder / "env" / "lib" / "python3.10" / "site-packages"
        for old in packages.glob("*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        for name, version in (("tensorrt_llm", release), ("tensorrt", "10.9.0.34")):
            info = packages / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        told = {"release": release, "fail": fail, **settings}
        (self.folder / "env" / "standin.json").write_text(json.dumps(told))

    def checkpoint(self, tp_size: int = 1, pp_size: int = 1, name: str = "ckpt", **config: Any) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        world_size = tp_size * pp_size
        document = {
            "architecture": "LlamaForCausalLM", "dtype": "float16", "num_attention_heads": 8, "hidden_size": 512,
            "mapping": {"world_size": world_size, "tp_size": tp_size, "pp_size": pp_size},
            "quantization": {"quant_algo": None, "kv_cache_quant_algo": None}, **config,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(document))
        for rank in range(world_size):
            (folder / f"rank{rank}.safetensors").write_bytes(f"weights {rank}".encode())
        return folder

    def recipe(self, text: str = "checkpoint: ckpt\n") -> load.LoadedRecipe:
        path = self.folder / "recipe.yaml"
        path.write_text(RECIPE.replace(LIMITS, "") + text if "limits:" in text else RECIPE + text)
        return load.recipe(path)

    def ensure(self, text: str = "checkpoint: ckpt\n", **keywords: Any) -> BuiltEngine:
        keywords.setdefault("environ", self.environ)
        return trtllm_builder.ensure(self.recipe(text), self.python, self.store, **keywords)

    def describe(self, text: str = "checkpoint: ckpt\n", **keywords: Any) -> BuiltEngine:
        keywords.setdefault("environ", self.environ)
        return trtllm_builder.describe(self.recipe(text), self.python, self.store, **keywords)

    def choose(self, release: str, text: str = "checkpoint: ckpt\n", sm: int | None = None) -> Chosen:
        asked = Asked(self.recipe(text), read(self.folder / "ckpt"), build_release(release), sm)
        return choose(asked)

    def published(self) -> list[str]:
        """Everything that a failed build must not leave: engines, and what is being built."""
        engines = self.folder / "home" / "engines"
        staging = engines / ".staging"
        names = [path.name for path in engines.glob("*") if not path.name.startswith(".")]
        return names + [path.name for path in staging.glob("*")]


def make(folder: Path) -> TrtllmBench:
    """A bench with 0.21.0 installed and a checkpoint for one GPU."""
    bench = TrtllmBench(folder)
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.10.12\n")
    python = folder / "env" / "bin" / "python"
    python.write_text(f"#!{sys.executable}\nimport os, sys\nos.execv({sys.executable!r}, sys.argv)\n")
    run = (
        f"sys.exit(trtllm_build.main(sys.argv[1:], json.loads(open({str(folder / 'env' / 'standin.json')!r}).read())))"
    )
    program = folder / "env" / "bin" / "trtllm-build"
    program.write_text(
        f"#!{sys.executable}\nimport json, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.standins import trtllm_build\n{run}\n"
    )
    for script in (python, program):
        script.chmod(0o755)
    bench.install("0.21.0")
    bench.checkpoint()
    return bench
