"""``transformers serve`` for real, on CPUs: a deployment file in, a warm service out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[1]
COEXIST = Path(sys.executable).with_name("coexist")
MODEL = ROOT / "models/smollm2-135m-instruct"


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One home, so that the right answers of the model are recorded once."""
    folder = tmp_path_factory.mktemp("home")
    run = folder / "run"
    run.mkdir(mode=0o700)
    return {**os.environ, "COEXIST_HOME": str(folder / "home"), "COEXIST_RUNTIME_DIR": str(run)}


def up(folder: Path, environ: dict[str, str], **keys: Any) -> tuple[int, dict[str, Any]]:
    """Exit status and document of a start that stops everything once it is ready."""
    service = {"runtime": "transformers", "model": str(MODEL), "port": free_port(), **keys}
    document = {"version": 1, "name": f"tf-{os.getpid()}", "services": {"chat": service}}
    config = folder / "deploy.yaml"
    config.write_text(yaml.safe_dump(document))
    command = [COEXIST, "up", config, "--exit-when-ready", "--json"]
    done = subprocess.run(command, env=environ, cwd=ROOT, check=False, capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(
    "options", [{}, {"continuous-batching": True, "cb-num-blocks": 64}], ids=["one by one", "continuous batching"]
)
def test_it_is_ready_once_its_answer_is_the_one_of_plain_transformers(
    options: dict[str, Any], tmp_path: Path, environ: dict[str, str]
):
    status, told = up(tmp_path, environ, options=options)
    assert status == 0, told
    (service,) = told["services"]
    assert [stage["state"] for stage in service["stages"]] == ["INIT", "PRELOAD", "PRIME", "SERVING"]
    assert service["canary"]["ok"] is True
    assert service["canary"]["expected"].startswith(" Paris")
    assert service["placement"]["on_plan_percent"] == 100
    assert service["first_token_ms"]["first"] > 0


def test_a_wrong_answer_is_never_ready(tmp_path: Path, environ: dict[str, str]):
    canary = {"prompt": "The capital of France is", "max_tokens": 4, "expected": " Berlin"}
    status, told = up(tmp_path, environ, canary=canary, restart={"max_restarts": 0, "window": "1min"})
    assert status == 1
    assert "canary" in json.dumps(told["error"])


def test_an_option_that_it_does_not_have_is_refused_before_anything_starts(tmp_path: Path, environ: dict[str, str]):
    status, told = up(tmp_path, environ, options={"continuous_batchin": True})
    assert status == 1
    assert told["error"]["hint"] == "Did you mean 'continuous-batching'?"
