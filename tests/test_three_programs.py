"""A stand-in for trtllm-serve on a made-up GPU, the real flash frontend and the real ``transformers serve``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.plan.machines import gpu, host
from tests.ports import free_ports
from tests.standins import trtllm_serve
from toolkit import affinity
from toolkit.assemble import launches, needs, paths, references
from toolkit.assemble.launches import Stage
from toolkit.assemble.programs import check_programs, installed
from toolkit.config import load
from toolkit.home import Home
from toolkit.host.model import ContainerLimits
from toolkit.plan import make
from toolkit.supervise.supervisor import Supervisor
from toolkit.units import parse_cpu_list

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "The capital of France is"
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
    "max_position_embeddings": 1024, "torch_dtype": "bfloat16",
}  # fmt: skip


def deployment(folder: Path, only: tuple[str, ...] = ("llm", "embed", "chat")) -> load.LoadedDeployment:
    """TensorRT-LLM's PyTorch mode on a GPU, an encoder and a chat model on CPUs."""
    model = folder / "llama"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SIZES))
    (model / "model.safetensors").write_bytes(b"\0" * 4096)
    ports = free_ports(3)
    canary = {"prompt": PROMPT, "max_tokens": 2, "expected": " Paris"}
    services = {
        "llm": {"runtime": "trtllm", "environment": "trtllm", "model": str(model), "gpus": 1, "canary": canary},
        "embed": {"runtime": "flash", "environment": "own", "model": str(ROOT / "models/all-minilm-l6-v2")},
        "chat": {
            "runtime": "transformers", "environment": "own", "model": str(ROOT / "models/smollm2-135m-instruct"),
            "after": ["llm", "embed"],
        },
    }  # fmt: skip
    told = {
        "version": 1,
        "name": "three",
        "environments": {"trtllm": {"python": str(folder / "env/bin/python")}, "own": {"python": sys.executable}},
        "services": {
            name: {**service, "port": port, **({"after": []} if len(only) < 3 and name == "chat" else {})}
            for (name, service), port in zip(services.items(), ports, strict=True)
            if name in only
        },
    }
    file = folder / f"{len(only)}.yaml"
    file.write_text(json.dumps(told))
    return load.deployment(file)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("COEXIST_RUNTIME_DIR", str(tmp_path / "runtime"))
    trtllm_serve.install(tmp_path / "env", "1.2.0", answers={PROMPT: [" Paris", "."]})
    home = Home(tmp_path / "home")
    # Of the made-up model nobody records an answer: its service says what is right.
    real = deployment(tmp_path, ("embed", "chat"))
    world = references.this_world(home.references, tmp_path / "hashes.json")
    recorded = references.of_deployment(real, paths.find(real), {}, world, print)
    loaded = deployment(tmp_path)
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    permitted = ContainerLimits(mempolicy_permitted=affinity.probe_mempolicy_permitted())
    machine = host(gpu(0), cores=len(allowed), cpus_allowed=allowed, limits=permitted)
    found = paths.find(loaded)
    plan = make(loaded.model, machine, needs.read(loaded.model, found))
    programs = installed(loaded.model, found.pythons, os.environ)
    made = Stage(loaded.model, machine, plan, found, home, {}, recorded, {"PATH": "/usr/bin:/bin"}, programs)
    check_programs(loaded, launches.launches(made))
    return made


def ask(port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=60) as answer:
        return dict(json.load(answer))


async def test_three_programs_go_to_ready_together_and_answer(stage: Stage, tmp_path: Path) -> None:
    runs = [launches.service_run(stage, each) for each in stage.plan.services]
    supervisor = Supervisor("three", runs, tmp_path / "state", wrap=affinity.wrap)
    await supervisor.start()
    try:
        await supervisor.wait_ready(600.0)
        states = {each["name"]: each for each in supervisor.snapshot()["services"]}
        answers = await asyncio.to_thread(answered, stage)
        on_plan = {
            name: affinity.verify([each["pid"]], parse_cpu_list(each["cpus"])).on_plan_percent
            for name, each in states.items()
        }
    finally:
        await supervisor.close()
    assert {name: each["state"] for name, each in states.items()} == dict.fromkeys(("llm", "embed", "chat"), "SERVING")
    assert [name for name, each in states.items() if not each["canary"]["ok"]] == []
    assert states["chat"]["canary"]["expected"].startswith(" Paris")
    assert answers == {"llm": " Paris.", "chat": " Paris", "embed": 384}
    assert on_plan == dict.fromkeys(states, 100)
    (record,) = trtllm_serve.records(tmp_path / "env").values()
    (device,) = next(each.devices for each in stage.plan.services if each.name == "llm")
    assert record["env"]["CUDA_VISIBLE_DEVICES"] == device.uuid


def answered(stage: Stage) -> dict[str, Any]:
    """What each service says once it is ready: two texts, and the length of a vector."""
    shown, ports = launches.launches(stage), {each.name: each.port for each in stage.plan.services}
    said: dict[str, Any] = {}
    for name, tokens in (("llm", 2), ("chat", 1)):
        generation = shown[name].probes.generation
        assert generation is not None
        body = {"model": generation.model, "prompt": PROMPT, "max_tokens": tokens, "temperature": 0}
        said[name] = ask(ports[name], generation.path, body)["choices"][0]["text"]
    vector = ask(ports["embed"], "/v1/embeddings", {"model": "all-minilm-l6-v2", "input": "a cat"})
    return {**said, "embed": len(vector["data"][0]["embedding"])}
