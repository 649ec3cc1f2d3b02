"""``runtime: trtllm`` with real processes: a stand-in for each program, a made-up host, the real supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.plan.machines import gpu, host
from tests.ports import free_port
from tests.standins import trtllm_serve
from tests.supervise.conftest import until
from toolkit import affinity
from toolkit.assemble import launches, needs, paths
from toolkit.assemble.launches import Engine, Stage
from toolkit.assemble.programs import check_programs, installed
from toolkit.config import load
from toolkit.config.models import Restart
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.home import Home
from toolkit.host.model import ContainerLimits
from toolkit.plan import make
from toolkit.processes import start_time
from toolkit.supervise.supervisor import Supervisor

ALLOWED = sorted(os.sched_getaffinity(0))
PERMITTED = affinity.probe_mempolicy_permitted()
PROMPT = "The capital of France is"
CANARY = {"prompt": PROMPT, "max_tokens": 2, "expected": " Paris"}
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
    "max_position_embeddings": 1024, "torch_dtype": "bfloat16",
}  # fmt: skip
UNABLE = dict.fromkeys(("kv_cache_reuse", "chunked_prefill", "draft_tokens"), False)


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("COEXIST_RUNTIME_DIR", str(tmp_path / "runtime"))


@dataclass
class Bench:
    """An environment with the stand-ins, an engine and a model, and services on a host with two GPUs."""

    folder: Path
    release: str = "1.2.0"

    def stage(self, misbehave: str = "", engine: bool = True, tp_size: int = 1, **keys: Any) -> Stage:
        env = self.folder / "env"
        answers = {PROMPT: [" Paris", "."]}
        python = trtllm_serve.install(env, self.release, misbehave=misbehave, answers=answers)
        model = self.folder / "llama"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(SIZES))
        (model / "model.safetensors").write_bytes(b"\0" * 4096)
        service = {
            "runtime": "trtllm", "environment": "trtllm", "tp_size": tp_size, "gpus": tp_size, "port": free_port(),
            "canary": CANARY, **({"engine": "llm"} if engine else {"model": str(model)}), **keys,
        }  # fmt: skip
        recipe = {
            "version": 1, "name": "llm", "builder": "trtllm", "model": str(model), "checkpoint": str(model),
            "tp_size": tp_size, "fmha": "disable", "limits": {"max_input_len": 512, "max_seq_len": 1024},
        }  # fmt: skip
        (self.folder / "recipe.yaml").write_text(json.dumps(recipe))
        engines = {"llm": {"recipe": "recipe.yaml", "environment": "trtllm"}} if engine else {}
        told = {"version": 1, "name": "node", "environments": {"trtllm": {"python": str(python)}}, "engines": engines,
                "services": {"llm": service}}  # fmt: skip
        file = self.folder / "deploy.yaml"
        file.write_text(json.dumps(told))
        return self._stage(load.deployment(file), tp_size)

    def _stage(self, loaded: load.LoadedDeployment, tp_size: int) -> Stage:
        self.loaded = loaded
        machine = host(
            gpu(0), gpu(1), cores=len(ALLOWED), cpus_allowed=tuple(ALLOWED),
            limits=ContainerLimits(mempolicy_permitted=PERMITTED),
        )  # fmt: skip
        found = paths.find(loaded)
        plan = make(loaded.model, machine, needs.read(loaded.model, found))
        folder = trtllm_serve.engine(self.folder / "engine", self.release, tp_size=tp_size, fused=False)
        limits = json.loads((folder / "config.json").read_text())["build_config"]
        limits = {name: limits[name] for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")}
        facts = {"release": self.release, "tp_size": tp_size, "pp_size": 1, "limits": limits, "features": UNABLE,
                 "plugin_config": {"context_fmha": False}}  # fmt: skip
        engines = {"llm": Engine(folder, "3f9a", facts)} if loaded.model.engines else {}
        programs = installed(loaded.model, found.pythons, os.environ)
        home = Home(self.folder / "home")
        return Stage(loaded.model, machine, plan, found, home, engines, {}, {"PATH": "/usr/bin:/bin"}, programs)

    def supervisor(self, stage: Stage, **changes: Any) -> Supervisor:
        runs = [
            replace(
                launches.service_run(stage, each), backoff_first_s=0.01, restart=Restart(max_restarts=1), grace_s=1.0
            )
            for each in stage.plan.services
        ]
        return Supervisor("node", runs, self.folder / "state", jitter=lambda: 0.0, **changes)

    async def ready(self, misbehave: str = "", **keys: Any) -> dict[str, Any]:
        """The status of the service at READY; everything is stopped then."""
        document = await self.supervisor(self.stage(misbehave, **keys)).run("ready", 60.0)
        (service,) = document["services"]
        assert service["state"] == "SERVING"
        return dict(service)

    async def failure(self, misbehave: str, **keys: Any) -> dict[str, Any]:
        """Why the service failed for good; it was never ready."""
        supervisor = self.supervisor(self.stage(misbehave, **keys))
        with pytest.raises(ToolkitError):
            await supervisor.run("ready", 60.0)
        (service,) = supervisor.snapshot()["services"]
        assert service["ready_at"] is None
        return dict(service["last_failure"])

    def records(self) -> dict[int, dict[str, Any]]:
        return trtllm_serve.records(self.folder / "env")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_an_engine_is_served_with_exactly_the_planned_devices_mask_policy_and_switches(bench: Bench) -> None:
    stage = bench.stage()
    document = await bench.supervisor(stage).run("ready", 60.0)
    (service,) = document["services"]
    assert (service["state"], service["attempt"], service["canary"]["ok"]) == ("SERVING", 1, True)
    (planned,) = stage.plan.services
    (record,) = bench.records().values()
    assert record["env"]["CUDA_VISIBLE_DEVICES"] == planned.devices[0].uuid
    assert record["env"]["TLLM_NUMA_AWARE_WORKER_AFFINITY"] == "0"
    assert "SLURM_PROCID" not in record["env"]
    assert tuple(record["cpus"]) == planned.cpus
    assert record["memory"] == ([2, 1] if PERMITTED else [0, 0])
    assert record["extra"]["kv_cache_config"]["enable_block_reuse"] is False
    assert record["extra"]["enable_chunked_prefill"] is False
    (path,) = launches.launch(stage, "llm", "-").files
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_model_is_served_by_tensorrt_llm_s_own_kernels_or_not_as_asked(bench: Bench) -> None:
    await bench.ready(engine=False, attention="vanilla")
    (record,) = bench.records().values()
    assert record["attention"] == "VANILLA"
    assert record["extra"]["attn_backend"] == "VANILLA"


async def test_ranks_of_mpirun_are_pinned_one_by_one(bench: Bench) -> None:
    stage = bench.stage(tp_size=2, options={"launcher": "mpirun"})
    await bench.supervisor(stage).run("ready", 60.0)
    records = bench.records()
    (planned,) = stage.plan.services
    assert sorted(records) == [0, 1]
    masks = [tuple(records[rank]["cpus"]) for rank in (0, 1)]
    assert tuple(
        launches.assignment(stage.host, stage.plan, "llm", stage.deployment.services["llm"]).rank_cpus
    ) == tuple(masks)
    assert sorted({cpu for mask in masks for cpu in mask}) == list(planned.cpus)
    assert "OMPI_COMM_WORLD_RANK" not in records[0]["env"]
    assert (stage.home.rank_logs("node", "llm") / "rank" / "1" / "rank.1" / "stdout").exists()
    assert [records[rank]["pid"] for rank in records if start_time(records[rank]["pid"]) is not None] == []


@pytest.mark.parametrize("wrong", ["load=0.3", "early-health=0.5", "slow-first=6", "empty-first"])
async def test_who_only_takes_its_time_becomes_ready(bench: Bench, wrong: str) -> None:
    assert (await bench.ready(wrong))["canary"]["ok"]


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        ("wrong", "canary_wrong", "nonsense"),
        ("no-answer", "canary_wrong", "Paris"),
        ("hang", "stalled", "no progress"),
    ],
)
async def test_who_answers_wrongly_or_not_at_all_is_never_ready(bench: Bench, wrong: str, kind: str, said: str) -> None:
    failure = await bench.failure(wrong, preload_window="1s")
    assert failure["class"] == kind
    assert said in failure["summary"]


async def test_who_hangs_is_ended_after_the_quiet_window_that_a_person_wrote(bench: Bench) -> None:
    failure = await bench.failure("hang", quiet_window="1s")
    assert failure["class"] == "stalled"
    assert "its log, memory, files and processors stand still" in failure["summary"]


@pytest.mark.parametrize("wrong", ["fallback", "echo-fallback"])
async def test_another_attention_than_was_asked_for_ends_the_attempt(bench: Bench, wrong: str) -> None:
    failure = await bench.failure(wrong, engine=False, attention="vanilla")
    assert failure["class"] == "log_check"
    assert "attention: vanilla" in failure["summary"]
    assert "TRTLLM" in failure["line"]


@pytest.mark.parametrize("wrong", ["ignore-term", "setsid-rank"])
async def test_nothing_is_left_of_who_does_not_want_to_end(bench: Bench, wrong: str) -> None:
    await bench.ready(wrong, tp_size=2)
    left = [each["pid"] for each in bench.records().values() if start_time(each["pid"]) is not None]
    assert left == []
    assert sorted(bench.records()) == [0, 1]


@pytest.fixture
async def serving(bench: Bench) -> Any:
    """Starts a service and waits until it serves; it is closed after the test."""
    started: list[Supervisor] = []

    async def start(misbehave: str, **keys: Any) -> Supervisor:
        supervisor = bench.supervisor(bench.stage(misbehave, **keys), watch_s=0.05)
        await supervisor.start()
        started.append(supervisor)
        await asyncio.wait_for(supervisor.wait_ready(60.0), 60.0)
        return supervisor

    yield start
    for supervisor in started:
        await supervisor.close()


def of_service(supervisor: Supervisor) -> dict[str, Any]:
    (service,) = supervisor.snapshot()["services"]
    return dict(service)


async def test_a_server_that_answers_503_for_ever_is_started_anew(bench: Bench, serving: Callable[..., Any]) -> None:
    supervisor = await serving("mute")
    os.kill(bench.records()[0]["pid"], signal.SIGUSR1)
    await until(lambda: of_service(supervisor)["attempt"] == 2)
    assert of_service(supervisor)["last_failure"]["class"] == "not_live"
    await until(lambda: of_service(supervisor)["state"] == "SERVING")


async def test_a_rank_that_dies_ends_the_attempt(bench: Bench, serving: Callable[..., Any]) -> None:
    supervisor = await serving("", tp_size=2, options={"launcher": "mpirun"})
    os.kill(bench.records()[1]["pid"], signal.SIGKILL)
    await until(lambda: of_service(supervisor)["attempt"] == 2)
    assert "rank 1" in of_service(supervisor)["last_failure"]["summary"]


async def test_a_crash_is_told_with_its_own_words(bench: Bench) -> None:
    supervisor = bench.supervisor(bench.stage("crash=0.2"))
    with pytest.raises(ToolkitError):
        await supervisor.run("ready", 60.0)
    failure = of_service(supervisor)["last_failure"]
    assert "illegal memory access" in failure["summary"]


@pytest.mark.parametrize("missing", ["mpirun", "trtllm-llmapi-launch", "trtllm-serve"])
def test_a_program_that_is_missing_is_told_before_anything_starts(bench: Bench, missing: str) -> None:
    stage = bench.stage(options={"launcher": "mpirun"})
    check_programs(bench.loaded, launches.launches(stage))
    (bench.folder / "env" / "bin" / missing).unlink()
    with pytest.raises(ManyFaultsError, match=missing):
        check_programs(bench.loaded, launches.launches(stage))
