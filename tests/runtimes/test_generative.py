"""vLLM, SGLang and transformers serve: what each is told, checked against stand-ins of their releases."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.runtimes.conftest import context, flag, service
from tests.standins import environments
from toolkit import environments as reader
from toolkit import runtimes
from toolkit.config.models import Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.runtimes.base import Assignment, DeviceMemory, HttpProbe, Launch, Program
from toolkit.units import GIB
from toolkit.warm import prime, wait_loaded
from toolkit.warm.model import Progress, Target, WarmupError

UUIDS = ("GPU-36f675cc-81e7-4ef5-a8e2-5d940ed90475", "GPU-6b0d549b-6f03-475a-9600-a35a099950d8")
SLICE = "MIG-377e0049-554c-540b-93c6-d0976f8426cb"
MEMORY = DeviceMemory(
    total_bytes=80 * GIB,
    budget_bytes=60 * GIB,
    context_bytes=GIB,
    fixed_bytes=20 * GIB,
    kv_bytes_per_token=GIB // 1024,
    free_bytes=79 * GIB,
    weights_bytes=15 * GIB,
)


def gpus(count: int = 1, *, uuids: tuple[str, ...] = UUIDS, port: int = 8001, **changes: Any) -> Assignment:
    known: dict[str, Any] = {
        "cpus": (0, 1),
        "port": port,
        "physical_cores": 16,
        "device_uuids": uuids[:count],
        "device_indices": tuple(range(3, 3 + count)),
        "budget_bytes": (60 * GIB,) * count,
        "memory": (MEMORY,) * count,
        "compute_capabilities": ("9.0",) * count,
    }
    return Assignment(**{**known, **changes})


CPUS = Assignment(cpus=(0, 1, 2), port=8001, physical_cores=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "torch_dtype": "bfloat16"}))
    return folder


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """An environment for every stand-in."""
    root = tmp_path_factory.mktemp("environments")
    return {key: environments.make(root / "-".join(key), *key) for key in environments.RELEASES}


def asked(runtime: str, **keys: Any) -> Service:
    canary = {"prompt": "The capital of France is", "max_tokens": 4, "expected": " Paris"}
    return service(**{"runtime": runtime, "model": "tiny", "gpus": 1, "canary": canary, **keys})


def program_of(runtime: str, python: Path) -> Program:
    found = runtimes.get(runtime).program(reader.read(python, environ={}), python, {})
    assert found is not None
    return found


def launch(made: Service, model: Path, python: Path, assignment: Assignment, **changes: Any) -> Launch:
    program = changes.pop("program", None) or program_of(made.runtime, python)
    runtimes.get(made.runtime).check("llm", made)
    given = context(made, python=python, model_dir=model, program=program, **changes)
    return runtimes.get(made.runtime).launch(given, assignment)


def refusal(made: Service, model: Path, python: Path, assignment: Assignment, **changes: Any) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        launch(made, model, python, assignment, **changes)
    return caught.value


RUNNING: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    while RUNNING:
        process = RUNNING.pop()
        process.kill()
        process.wait()


def start(made: Launch, folder: Path, **how: Any) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
    own = {"STANDIN": json.dumps(how), "STANDIN_RECORD": str(folder / "record.json")}
    env = {**made.env, **own}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(made.argv, env=env, stdout=log, stderr=log)
    RUNNING.append(process)
    return process, env


def recorded(process: subprocess.Popen[bytes], folder: Path) -> dict[str, Any]:
    deadline_s = time.monotonic() + 20
    while not (folder / "record.json").exists():
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    found: dict[str, Any] = json.loads((folder / "record.json").read_text())
    return found


class Clock:
    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


async def warm(made: Launch, port: int, told: Callable[[Progress], None] = lambda _: None) -> Any:
    target = Target(f"http://127.0.0.1:{port}", made.probes)
    async with aiohttp.ClientSession() as http:
        await wait_loaded(target, http, Clock(), told, 20)
        return await prime(target, http, Clock(), "full", lambda _: None)


# Options that every release of the program has.
OPTIONS: dict[str, dict[str, Any]] = {
    "vllm": {"max_model_len": 4096, "dtype": "bfloat16", "kv-cache-dtype": "fp8", "enforce_eager": True},
    "sglang": {"context_length": 4096, "dtype": "bfloat16", "cuda_graph_bs": [1, 2], "disable-cuda-graph": True},
}
ONLY_IN = {"disable-cuda-graph": ("sglang", "0.4.9")}


@pytest.mark.parametrize(("name", "release"), environments.RELEASES)
async def test_each_release_takes_its_command_and_becomes_warm(
    name: str, release: str, pythons: Any, model: Path, tmp_path: Path
):
    options = {k: v for k, v in OPTIONS[name].items() if ONLY_IN.get(k, (name, release)) == (name, release)}
    port = free_port()
    made = launch(asked(name, gpus=2, tp_size=2, options=options), model, pythons[name, release], gpus(2, port=port))
    process, env = start(made, tmp_path)
    proof = await warm(made, port)
    assert proof.canary.ok
    assert len(proof.first_token_ms) >= 5
    told = recorded(process, tmp_path)
    assert told["env"] == env
    assert told["options"]["port"] == port


@pytest.mark.parametrize(("name", "release"), environments.RELEASES)
def test_an_option_of_another_release_is_refused_with_the_nearest(name: str, release: str, pythons: Any, model: Path):
    wrong = {"vllm": "max_model_length", "sglang": "context_lenght"}[name]
    right = {"vllm": "max-model-len", "sglang": "context-length"}[name]
    error = refusal(asked(name, options={wrong: 1}), model, pythons[name, release], gpus())
    assert isinstance(error, ManyFaultsError)
    assert error.what == f"{name} {release} has no option '{wrong}'"
    assert error.hint == f"Did you mean '{right}'?"
    assert error.where == f"services.llm.options.{wrong}"


def test_what_the_plan_decides_is_no_option(pythons: Any, model: Path):
    for name, options in (
        ("vllm", ["port", "tensor_parallel_size", "gpu_memory_utilization", "tp", "api_key"]),
        ("sglang", ["port", "tp_size", "mem_fraction_static", "tensor-parallel-size", "base_gpu_id"]),
    ):
        for option in options:
            release = "0.10.9" if name == "vllm" else "0.5.29"
            error = refusal(asked(name, options={option: 1}), model, pythons[name, release], gpus())
            assert (error.code, error.what) == ("option_owned", f"'{option}' is not set here")
            assert error.hint


# Memory


def test_vllm_gets_a_fraction_of_the_total_and_where_it_can_be_told_its_kv_cache_in_bytes(pythons: Any, model: Path):
    for release, bytes_too in (("0.6.9", False), ("0.10.9", True), ("0.33.9", True)):
        argv = launch(asked("vllm"), model, pythons["vllm", release], gpus()).argv
        assert flag(argv, "--gpu-memory-utilization") == "0.75"
        assert ("--kv-cache-memory-bytes" in argv) == bytes_too
        assert not bytes_too or flag(argv, "--kv-cache-memory-bytes") == str(40 * GIB)


def test_the_smallest_device_decides_and_an_unknown_one_leaves_it_to_the_program(pythons: Any, model: Path):
    made, python = asked("vllm", gpus=2, tp_size=2), pythons["vllm", "0.10.9"]
    smaller = DeviceMemory(total_bytes=80 * GIB, budget_bytes=40 * GIB, fixed_bytes=20 * GIB, kv_bytes_per_token=1)
    argv = launch(made, model, python, gpus(2, memory=(MEMORY, smaller))).argv
    assert (flag(argv, "--gpu-memory-utilization"), flag(argv, "--kv-cache-memory-bytes")) == ("0.5", str(20 * GIB))
    unknown = launch(made, model, python, gpus(2, memory=(MEMORY, DeviceMemory())))
    assert "--gpu-memory-utilization" not in unknown.argv
    assert any("KV cache is what vLLM leaves" in note for note in unknown.notes)


def test_sglang_gets_a_fraction_of_what_is_free_and_a_bound_in_tokens(pythons: Any, model: Path):
    argv = launch(asked("sglang"), model, pythons["sglang", "0.5.29"], gpus()).argv
    assert float(flag(argv, "--mem-fraction-static")) == pytest.approx(55 / 78, abs=1e-4)
    assert float(flag(argv, "--mem-fraction-static")) * 78 <= 55
    assert flag(argv, "--max-total-tokens") == str(40 * 1024)


def test_transformers_has_nothing_that_holds_it_to_a_budget_and_that_is_said(model: Path):
    made = launch(asked("transformers"), model, Path("/e/bin/python"), gpus(), program=TRANSFORMERS)
    assert any("nothing holds it to its memory budget" in note for note in made.notes)


# Devices


def test_releases_that_cannot_read_uuids_get_indices(pythons: Any, model: Path):
    for release, visible in (("0.6.9", "3"), ("0.10.9", "3"), ("0.33.9", UUIDS[0])):
        env = launch(asked("vllm"), model, pythons["vllm", release], gpus()).env
        assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == (visible, "PCI_BUS_ID")
    env = launch(asked("sglang", gpus=2, tp_size=2), model, pythons["sglang", "0.4.9"], gpus(2)).env
    assert env["CUDA_VISIBLE_DEVICES"] == ",".join(UUIDS)


def test_a_release_given_a_uuid_that_it_cannot_read_dies_which_is_why(pythons: Any, model: Path, tmp_path: Path):
    made = launch(asked("vllm"), model, pythons["vllm", "0.10.9"], gpus(port=free_port()))
    env = {**made.env, "CUDA_VISIBLE_DEVICES": UUIDS[0]}
    done = subprocess.run(made.argv, env=env, capture_output=True, text=True, check=False, timeout=30)
    assert "invalid literal for int()" in done.stderr


def test_a_slice_needs_a_release_that_reads_uuids(pythons: Any, model: Path):
    on_slice = gpus(uuids=(SLICE,))
    assert refusal(asked("vllm"), model, pythons["vllm", "0.10.9"], on_slice).code == "mig_unsupported"
    assert launch(asked("vllm"), model, pythons["vllm", "0.33.9"], on_slice).env["CUDA_VISIBLE_DEVICES"] == SLICE


def test_without_a_gpu_a_build_that_is_not_for_cpus_is_told(pythons: Any, model: Path, tmp_path: Path):
    def told(program: str, python: Any) -> bool:
        made = launch(asked(program, gpus=0), model, python, CPUS)
        assert made.env["CUDA_VISIBLE_DEVICES"] == ""
        return any("the plan gives it no GPU" in note for note in made.notes)

    assert told("vllm", pythons["vllm", "0.33.9"])
    assert told("sglang", pythons["sglang", "0.4.9"])
    python = environments.make(tmp_path / "cpu", "vllm", "0.33.9", version="0.33.9+cpu")
    assert not told("vllm", python)
    assert launch(asked("vllm", gpus=0), model, python, CPUS).env["VLLM_CPU_OMP_THREADS_BIND"] == "0-2"


def test_metadata_alone_tell_what_is_installed_and_options_go_on_unchecked(model: Path, tmp_path: Path):
    python = environments.make(tmp_path / "env", "vllm", "0.33.9")
    for folder in (tmp_path / "env").rglob("site-packages/vllm"):
        shutil.rmtree(folder)
    made = launch(asked("vllm", options={"whatever": 1}), model, python, gpus())
    assert (Path(made.argv[0]).name, made.argv[1]) == ("vllm", "serve")
    assert made.argv[-2:] == ("--whatever", "1")
    assert any("they are passed on unchecked" in note for note in made.notes)


def test_ranks_are_as_many_as_devices(pythons: Any, model: Path):
    error = refusal(asked("vllm", gpus=2), model, pythons["vllm", "0.33.9"], gpus(2))
    assert (error.code, error.where) == ("world_size", "services.llm.gpus")
    argv = launch(asked("vllm", gpus=2, pp_size=2), model, pythons["vllm", "0.33.9"], gpus(2)).argv
    assert (flag(argv, "--pipeline-parallel-size"), flag(argv, "--distributed-executor-backend")) == ("2", "mp")
    error = refusal(asked("sglang", gpus=2, pp_size=2), model, pythons["sglang", "0.4.9"], gpus(2))
    assert error.what == "SGLang 0.4.9 has no pipeline parallelism"


# Environment


@pytest.mark.parametrize(("name", "release"), [("vllm", "0.33.9"), ("sglang", "0.5.29")])
def test_the_environment_is_built_name_by_name(name: str, release: str, pythons: Any, model: Path):
    parent = {"HF_TOKEN": "secret", "PATH": "/usr/bin", "HOME": "/root", "VLLM_API_KEY": "secret"}
    made = launch(
        asked(name, gpus=2, tp_size=2, env={"MINE": "1"}), model, pythons[name, release], gpus(2), environ=parent
    )
    assert "secret" not in made.env.values()
    assert (made.env["OMP_NUM_THREADS"], made.env["MINE"]) == ("8", "1")  # 16 cores, two ranks
    caches = {"vllm": ["VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"], "sglang": ["SGLANG_CACHE_DIR", "SGLANG_DG_CACHE_DIR"]}
    for variable in (*caches[name], "DG_JIT_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR"):
        assert made.env[variable].startswith("/var/coexist/caches/llm/")
    switches = {"vllm": {"VLLM_NO_USAGE_STATS": "1"}, "sglang": {"SGLANG_AUTO_NUMA_BIND": "0"}}
    assert switches[name].items() <= made.env.items()


# Attention


@pytest.mark.parametrize(
    ("release", "words", "variables"),
    [
        ("0.6.9", (), {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "VLLM_FLASH_ATTN_VERSION": "3"}),
        ("0.10.9", (), {"VLLM_ATTENTION_BACKEND": "FLASH_ATTN", "VLLM_FLASH_ATTN_VERSION": "3"}),
        ("0.33.9", ("--attention-config", '{"backend": "FLASH_ATTN", "flash_attn_version": 3}'), {}),
    ],
)
def test_vllm_is_told_of_attention_as_its_release_listens(
    release: str, words: tuple[str, ...], variables: dict[str, str], pythons: Any, model: Path
):
    made = launch(asked("vllm", attention="fa3"), model, pythons["vllm", release], gpus())
    assert tuple(w for w in made.argv if w in words) == words
    assert {name: value for name, value in made.env.items() if "ATTENTION_B" in name or "ATTN_V" in name} == variables
    auto = launch(asked("vllm"), model, pythons["vllm", release], gpus())
    assert "--attention-config" not in auto.argv
    assert "VLLM_ATTENTION_BACKEND" not in auto.env


def test_sglang_is_told_of_attention_that_its_release_has(pythons: Any, model: Path):
    argv = launch(asked("sglang", attention="fa4"), model, pythons["sglang", "0.5.29"], gpus()).argv
    assert flag(argv, "--attention-backend") == "fa4"
    error = refusal(asked("sglang", attention="fa4"), model, pythons["sglang", "0.4.9"], gpus())
    assert error.what == "SGLang 0.4.9 has no attention 'fa4' (fa4)"


@pytest.mark.parametrize(
    ("runtime", "keys", "code"),
    [
        ("vllm", {"attention": "sdpa"}, "unsupported"),
        ("vllm", {"attention": "vanilla"}, "unsupported"),
        ("sglang", {"attention": "fa2"}, "unsupported"),
        ("sglang", {"attention": "vanilla"}, "unsupported"),
        ("transformers", {"attention": "fa2", "gpus": 0}, "unsupported"),
        ("transformers", {"tp_size": 2, "gpus": 2}, "unsupported"),
        ("vllm", {"fmha": "disable"}, "fmha_unsupported"),
        ("sglang", {"fmha": "disable"}, "fmha_unsupported"),
        ("transformers", {"fmha": "disable"}, "fmha_unsupported"),
        ("vllm", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "env_reserved"),
    ],
)
def test_what_a_program_does_not_offer_is_refused_before_anything_is_read(
    runtime: str, keys: dict[str, Any], code: str
):
    with pytest.raises(ToolkitError) as caught:
        runtimes.get(runtime).check("llm", asked(runtime, **keys))
    assert caught.value.code == code
    assert caught.value.hint
    assert str(caught.value.where).startswith("services.llm.")


@pytest.mark.parametrize(("runtime", "option"), [("vllm", "attention-backend"), ("sglang", "attention-backend")])
def test_attention_is_named_once(runtime: str, option: str, pythons: Any, model: Path):
    release = {"vllm": "0.33.9", "sglang": "0.5.29"}[runtime]
    both = asked(runtime, attention="fa3", options={option: "fa3"})
    assert refusal(both, model, pythons[runtime, release], gpus()).code == "option_owned"
    alone = launch(asked(runtime, options={option: "fa3"}), model, pythons[runtime, release], gpus())
    assert flag(alone.argv, "--attention-backend") == "fa3"


# transformers

SERVING = dict.fromkeys(("accelerate", "fastapi", "openai", "pydantic", "torch", "uvicorn"), "1.0")
TRANSFORMERS = Program("transformers", "5.24.0", Path("/e/bin/transformers"), "installed", None, SERVING)
WITH_FLASH = Program(
    "transformers", "5.24.0", Path("/e/bin/transformers"), "installed", None, {**SERVING, "flash-attn": "2"}
)


@pytest.mark.parametrize(
    ("program", "assignment", "attention", "expected"),
    [
        (TRANSFORMERS, CPUS, "auto", "sdpa"),
        (TRANSFORMERS, gpus(), "auto", "sdpa"),
        (WITH_FLASH, gpus(), "auto", "flash_attention_2"),
        (WITH_FLASH, gpus(compute_capabilities=("7.5",)), "auto", "sdpa"),
        (WITH_FLASH, gpus(compute_capabilities=(None,)), "auto", "sdpa"),
        (WITH_FLASH, gpus(), "fa3", "flash_attention_3"),
        (WITH_FLASH, gpus(), "vanilla", "eager"),
    ],
)
def test_transformers_attention_is_chosen_for_gpu_package_and_model(
    program: Program, assignment: Assignment, attention: str, expected: str, model: Path
):
    made = asked("transformers", attention=attention, gpus=len(assignment.device_uuids))
    argv = launch(made, model, Path("/e/bin/python"), assignment, program=program).argv
    assert flag(argv, "--attn-implementation") == expected
    assert flag(argv, "--device") == ("cuda:0" if assignment.device_uuids else "cpu")


def test_a_float32_model_gets_no_flash_attention(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"dtype": "float32"}')
    made = launch(asked("transformers"), tmp_path, Path("/e/bin/python"), gpus(), program=WITH_FLASH)
    assert flag(made.argv, "--attn-implementation") == "sdpa"


def test_packages_that_serving_needs_are_named(model: Path):
    bare = Program("transformers", "5.24.0", Path("/e/bin/transformers"), "installed", None, {"torch": "2.11"})
    error = refusal(asked("transformers", gpus=0), model, Path("/e/bin/python"), CPUS, program=bare)
    assert error.what.startswith("'transformers serve' needs accelerate, fastapi, openai, pydantic, uvicorn, missing")
    assert error.code == "no_program"


def test_a_release_that_serves_chats_only_needs_to_be_told_what_is_right(model: Path):
    old = Program("transformers", "5.0", Path("/t"), "installed", None, SERVING, features={"completions": False})
    error = refusal(asked("transformers", gpus=0, canary=None), model, Path("/e/p"), CPUS, program=old)
    assert error.code == "no_canary"
    probes = launch(asked("transformers", gpus=0), model, Path("/e/p"), CPUS, program=old).probes
    assert probes.generation is not None
    assert probes.generation.path == "/v1/chat/completions"
    assert "messages" in probes.warmup[0].body


# Probes


def test_each_program_is_asked_for_what_it_has(pythons: Any, model: Path):
    vllm = launch(asked("vllm"), model, pythons["vllm", "0.33.9"], gpus()).probes
    assert (vllm.loaded, vllm.deep, vllm.metrics) == (HttpProbe("/health"), None, HttpProbe("/metrics"))
    sglang = launch(asked("sglang"), model, pythons["sglang", "0.5.29"], gpus()).probes
    assert sglang.deep is not None
    assert (sglang.deep.path, sglang.metrics) == ("/health_generate", HttpProbe("/metrics"))
    transformers = launch(asked("transformers"), model, Path("/e/p"), gpus(), program=TRANSFORMERS).probes
    assert (transformers.metrics, transformers.drain, transformers.register) == (None, None, None)
    assert [isinstance(probe.body["prompt"], str) for probe in transformers.warmup] == [True] * len(transformers.warmup)


def test_warmup_grows_as_far_as_the_limit_lets_it(pythons: Any, model: Path):
    def words(**keys: Any) -> list[int]:
        probes = launch(asked("vllm", **keys), model, pythons["vllm", "0.33.9"], gpus()).probes
        return [len(probe.body["prompt"].split()) for probe in probes.warmup if isinstance(probe.body["prompt"], str)]

    assert words() == [8, 64]  # the model has 512 positions, and a word may be two tokens
    assert words(options={"max_model_len": 100000}) == [8, 64, 256, 1024, 4096]
    assert words(options={"max_model_len": 4}) == [1]


def test_the_model_is_called_as_its_folder_or_as_the_option_says(pythons: Any, model: Path):
    made = launch(asked("vllm"), model, pythons["vllm", "0.33.9"], gpus())
    assert made.probes.generation is not None
    assert (flag(made.argv, "--served-model-name"), made.probes.generation.model) == ("tiny", "tiny")
    named = launch(asked("vllm", options={"served_model_name": "gpt"}), model, pythons["vllm", "0.33.9"], gpus())
    assert named.argv.count("--served-model-name") == 1
    assert named.probes.generation is not None
    assert named.probes.generation.model == "gpt"


# What cannot be looked into


def test_an_environment_that_cannot_be_looked_into_takes_what_is_declared(model: Path):
    def argv(declared: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        python = Path("/opt/v/bin/python")
        program = runtimes.get("vllm").program(None, python, declared)
        made = launch(asked("vllm", options={"new-thing": 1}), model, python, gpus(), program=program)
        return made.argv[:3], made.notes, made.env["CUDA_VISIBLE_DEVICES"]

    command, notes, visible = argv({"vllm": "0.33.0"})
    assert (command, visible) == (("/opt/v/bin/vllm", "serve", str(model)), UUIDS[0])
    assert any("passed on unchecked" in note for note in notes)
    command, _, visible = argv({"vllm": "0.5.0"})
    assert (command, visible) == (("/opt/v/bin/python", "-m", "vllm.entrypoints.openai.api_server"), "3")
    _, notes, visible = argv({})
    assert visible == "3"  # an index is read by every release
    assert any("the release of vllm is not known" in note for note in notes)


def test_a_program_that_is_not_installed_is_said_to_be_missing(pythons: Any, model: Path):
    error = refusal(asked("sglang"), model, pythons["vllm", "0.6.9"], gpus())
    assert error.what.startswith("sglang is not installed in the environment of ")
    assert (error.code, error.where) == ("no_program", "services.llm.environment")


# Servers that misbehave


async def test_a_health_that_answers_early_makes_nothing_ready(pythons: Any, model: Path, tmp_path: Path):
    port = free_port()
    made = launch(asked("sglang"), model, pythons["sglang", "0.5.29"], gpus(port=port))
    start(made, tmp_path, early_health=True, load_s=0.6)
    told: list[Progress] = []
    proof = await warm(made, port, told.append)
    assert any(each.what.startswith("GET /health_generate: 503") for each in told)
    assert proof.canary.ok


@pytest.mark.parametrize(
    ("how", "code"),
    [({"wrong": True}, "canary_wrong"), ({"failing": True}, "request_failed"), ({"crash_after": 2}, "request_failed")],
)
async def test_each_misbehaviour_ends_with_one_reason(
    how: dict[str, Any], code: str, pythons: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.modules["toolkit.warm.prime"], "PATIENCE_S", 0.5)
    port = free_port()
    made = launch(asked("vllm"), model, pythons["vllm", "0.33.9"], gpus(port=port))
    start(made, tmp_path, **how)
    with pytest.raises(WarmupError) as caught:
        await warm(made, port)
    assert caught.value.code == code


def test_term_ends_a_server_that_does_not_ignore_it(pythons: Any, model: Path, tmp_path: Path):
    made = launch(asked("vllm"), model, pythons["vllm", "0.33.9"], gpus(port=free_port()))
    process, _ = start(made, tmp_path)
    told = recorded(process, tmp_path)
    assert told["cpus"] == sorted(os.sched_getaffinity(0))
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) in (0, -signal.SIGTERM)
