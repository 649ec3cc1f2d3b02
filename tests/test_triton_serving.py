"""Triton under the supervisor: its stand-in becomes READY where it answers rightly, and never where it does not."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port, free_ports
from tests.runtimes.test_triton import RUNTIME, engine, engine_service, templates, triton_context
from tests.supervise.conftest import supervise
from toolkit import affinity
from toolkit.config.models import Restart, Service
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import Assignment, Launch
from toolkit.supervise.service import ServiceRun

STANDIN = Path(__file__).parent / "standins" / "tritonserver.py"
PROMPT = {"prompt": "The capital of France is", "max_tokens": 4, "expected": " Paris"}
IDS = {"input_ids": [5, 7], "input_lengths": 2, "request_output_len": 3}
ASK = {"method": "POST", "path": "/v2/models/tensorrt_llm/generate", "body": IDS, "contains": "[12, 13, 14]"}
CPUS = tuple(sorted(os.sched_getaffinity(0))[:1])


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with ``tritonserver``, whose shared memory is in ``tmp_path/shm``."""
    folder, shm = tmp_path / "bin", tmp_path / "shm"
    folder.mkdir()
    shm.mkdir()
    script = folder / "tritonserver"
    script.write_text(f'#!/bin/sh\nTRITON_STANDIN_SHM={shm} exec {sys.executable} -I -S {STANDIN} "$@"\n')
    script.chmod(0o755)
    return folder


def with_text(tmp_path: Path, goes_wrong: str = "", **keys: Any) -> Service:
    """An engine behind the back end's templates, which takes and gives text."""
    options = {"backend_dir": str(tmp_path / "templates"), **keys.pop("options", {})}
    env = {"TRITON_STANDIN": goes_wrong, "TRITON_STANDIN_RECORD": str(tmp_path / "record")}
    return engine_service(**{"canary": PROMPT, "env": env, "grace": "2s", "options": options, **keys})


def run_of(
    made: Service, tmp_path: Path, programs: Path, *, port: int | None = None, window_s: float = 60.0
) -> ServiceRun:
    """The service as the assembly would hand it to the supervisor."""
    folder = engine(tmp_path / "engine")
    (folder / "standin.json").write_text(json.dumps({PROMPT["prompt"]: " Paris is the capital"}))
    templates(tmp_path / "templates")
    given = triton_context(
        made, tmp_path, environ={"PATH": f"{programs}:{os.environ['PATH']}"}, cache_dir=tmp_path / "cache"
    )
    assigned = Assignment(cpus=CPUS, port=port or free_port(), device_uuids=("GPU-1f2e",), memory=())
    RUNTIME.check("llm", made)

    def launch(attempt: int) -> Launch:
        found = RUNTIME.launch(replace(given, token=f"attempt {attempt}"), assigned)
        return replace(found, preload_window_s=window_s)

    return ServiceRun(
        *("llm", "triton", launch, assigned.port),
        cpus=CPUS,
        restart=Restart(max_restarts=0, window="60s"),
        grace_s=2.0,
        other_ports=launch(0).ports,
    )


async def ready(tmp_path: Path, run: ServiceRun) -> Mapping[str, Any]:
    supervisor = supervise(tmp_path / "state", run, wrap=affinity.wrap, gpu_use=lambda: ())
    status = await supervisor.run(until="ready", timeout_s=60.0)
    found: Mapping[str, Any] = status["services"][0]
    return found


async def test_an_engine_behind_its_tokenizer_becomes_ready_and_answers(tmp_path: Path, programs: Path) -> None:
    found = await ready(tmp_path, run_of(with_text(tmp_path, "slow-first=1"), tmp_path, programs))
    assert found["state"] == "SERVING"
    assert found["canary"]["ok"]
    assert found["canary"]["got"].strip().startswith("Paris")
    record = json.loads((tmp_path / "record").read_text())
    assert record["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1f2e"
    assert record["cpus"] == list(CPUS)
    assert "HOME" in record["env"]
    assert not [name for name in record["env"] if name.startswith(("PYTEST", "VIRTUAL_ENV"))]
    assert not list((tmp_path / "shm").iterdir()), "it was stopped politely, and took its shared memory along"


async def test_the_inner_model_alone_becomes_ready_by_token_ids(tmp_path: Path, programs: Path) -> None:
    alone = engine_service(canary=ASK, grace="2s")
    found = await ready(tmp_path, run_of(alone, tmp_path, programs))
    assert found["state"] == "SERVING"
    assert found["canary"]["ok"]
    assert found["first_token_ms"]["first"] is not None


@pytest.mark.parametrize(
    ("goes_wrong", "window_s", "why"),
    [
        ("warmup-error", 60.0, "a warm-up request of one of its models failed, though it says it is ready"),
        ("wrong", 60.0, "the canary's answer is wrong"),
        ("no-answer", 60.0, "CUDA out of memory"),
        ("unready", 1.0, "no progress"),
    ],
)
async def test_who_only_says_that_it_is_ready_is_not_believed(
    tmp_path: Path, programs: Path, goes_wrong: str, window_s: float, why: str
) -> None:
    with pytest.raises(ToolkitError, match=why):
        await ready(tmp_path, run_of(with_text(tmp_path, goes_wrong), tmp_path, programs, window_s=window_s))


async def test_a_port_that_is_taken_is_told_before_the_start(tmp_path: Path, programs: Path) -> None:
    port, grpc = free_ports(2)
    run = run_of(with_text(tmp_path, options={"grpc_port": grpc}), tmp_path, programs, port=port)
    told = rf"port {grpc} of 'llm \(grpc_port\)' is in use"
    with socket.create_server(("127.0.0.1", grpc)), pytest.raises(ToolkitError, match=told):
        await ready(tmp_path, run)
    assert not (tmp_path / "record").exists()
