from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.config.models import Deployment, Recipe, Service
from toolkit.runtimes.base import Assignment, Context

ENGINE: dict[str, Any] = {
    "device": "cpu",
    "limits": {"max_input_len": 512, "max_seq_len": 1024},
    "canary": {"prompt": "The capital of France is", "tokens": [7042, 30, 198], "text": " Paris.\n"},
}
RECIPE = Recipe(version=1, name="smollm2-135m", builder="torch", model=Path("models/smollm2"))


def service(**keys: Any) -> Service:
    return Service.model_validate(keys)


def context(made: Service, name: str = "llm", **changes: Any) -> Context:
    deployment = Deployment.model_validate({"version": 1, "name": "two", "services": {name: made}})
    known: dict[str, Any] = {
        "deployment": deployment,
        "name": name,
        "service": made,
        "python": Path("/opt/env/bin/python"),
        "model_dir": None,
        "engine_dir": None,
        "engine_manifest": None,
        "recipe": None,
        "cache_dir": Path("/var/coexist/caches/llm"),
        "token": "token-of-this-attempt",
    }
    return Context(**{**known, **changes})


def engine_context(made: Service, **changes: Any) -> Context:
    known: dict[str, Any] = {"engine_dir": Path("/engines/3f9a"), "engine_manifest": ENGINE, "recipe": RECIPE}
    return context(made, **{**known, **changes})


def model_context(made: Service, **changes: Any) -> Context:
    return context(made, "embed", **{"model_dir": Path("/models/minilm"), **changes})


CPUS = Assignment(cpus=(0, 1, 32, 33), port=8001, physical_cores=2)
GPU = Assignment(cpus=(0, 1), port=8001, device_uuids=("GPU-1f2e",), budget_bytes=(4 << 30,))


def flag(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]
