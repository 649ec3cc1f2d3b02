from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtimes.conftest import context, service
from tests.standins import mpirun, tritonserver
from toolkit.config.models import Deployment, Environment, Recipe, Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.runtimes import pbtxt
from toolkit.runtimes.base import Assignment, Context, DeviceMemory, Launch, Program
from toolkit.runtimes.mpi import PIN
from toolkit.runtimes.triton import TritonRuntime
from toolkit.supervise import launch_files
from toolkit.units import GIB

RUNTIME = TritonRuntime(as_root=False)
TEMPLATES = Path(__file__).with_name("data") / "triton_templates"
ABLE = dict.fromkeys(("kv_cache_reuse", "chunked_prefill", "draft_tokens"), True)
LIMITS = {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096}
MEMORY = DeviceMemory(80 * GIB, 60 * GIB, GIB, 20 * GIB, 131_072, 32, 75 * GIB, 70 * GIB)
ASK = {"method": "POST", "path": "/v2/models/tensorrt_llm/generate", "body": {"input_ids": [1]}, "contains": "7042"}


def assignment(gpus: int = 1, **changes: Any) -> Assignment:
    known: dict[str, Any] = {
        "cpus": (0, 1, 2, 3),
        "port": 8001,
        "device_uuids": tuple(f"GPU-{number}" for number in range(gpus)),
        "rank_cpus": ((0, 1), (2, 3)) if gpus == 2 else (),
        "memory": (MEMORY,) * gpus,
    }
    return Assignment(**{**known, **changes})


def engine(folder: Path, *, ranks: int = 1, paged: bool = True) -> Path:
    """An engine as far as the stand-in looks at it."""
    folder.mkdir()
    plugins = {"context_fmha": True, "use_paged_context_fmha": paged}
    mapping = {"world_size": ranks, "tp_size": ranks, "pp_size": 1}
    config = {"pretrained_config": {"mapping": mapping}, "build_config": {"plugin_config": plugins}}
    (folder / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (folder / f"rank{rank}.engine").write_bytes(b"plan")
    return folder


def templates(folder: Path, *, inner: str = "") -> Path:
    """The back end's own templates in form; ``inner`` stands behind those of the inner model."""
    for template in TEMPLATES.glob("*/config.pbtxt"):
        model = folder / template.parent.name
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(template.read_text() + (inner if model.name == "tensorrt_llm" else ""))
    for name in ("preprocessing", "postprocessing"):
        (folder / name / "1" / "model.py").write_text("# tokenizes\n")
    return folder


def triton_context(made: Service, tmp_path: Path, **changes: Any) -> Context:
    recipe = Recipe.model_validate(
        {"version": 1, "name": "llm", "builder": "trtllm", "checkpoint": "x", "kv_cache": {"reuse": True}}
    )
    known: dict[str, Any] = {
        "engine_dir": tmp_path / "engine",
        "engine_manifest": {"limits": LIMITS, "features": ABLE, "trtllm_version": "0.15.0", "tp_size": 1},
        "recipe": recipe,
        "run_dir": tmp_path / "run",
        "tokenizer_dir": tmp_path,
        "program": Program("tritonserver", None, Path("tritonserver"), "assumed", packages={"tensorrt-llm": "0.15.0"}),
    }
    return context(made, **{**known, **changes})


def engine_service(**keys: Any) -> Service:
    return service(runtime="triton", engine="llm", **{"gpus": 1, "canary": ASK, **keys})


def launch(tmp_path: Path, made: Service | None = None, gpus: int = 1, **changes: Any) -> Launch:
    made = made or engine_service()
    RUNTIME.check("llm", made)
    return RUNTIME.launch(triton_context(made, tmp_path, **changes), assignment(gpus))


@pytest.fixture(autouse=True)
def _own_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_STANDIN_SHM", str(tmp_path))


def loaded(
    made: Launch, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...] | None = None, **env: str
) -> tritonserver.Server:
    """The strict stand-in, which has loaded what the launch brings, in the launch's own environment."""
    launch_files.write(made.files)
    for name, value in {**made.env, **env}.items():
        monkeypatch.setenv(name, value)
    server = tritonserver.Server(tritonserver.parse(list((argv or made.argv)[1:])))
    try:
        server.load()
    finally:
        server.leave()
    return server


def settings(server: tritonserver.Server) -> dict[str, str]:
    rows = server.models["tensorrt_llm"]["parameters"]
    return {row["key"][0]: row["value"][0]["string_value"][0] for row in rows}


def test_the_inner_model_alone_is_a_repository_that_the_server_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(tmp_path / "engine")
    made = launch(tmp_path)
    server = loaded(made, monkeypatch)
    assert list(server.models) == ["tensorrt_llm"]
    told = settings(server)
    assert told["gpt_model_path"] == str(tmp_path / "engine")
    assert told["gpu_device_ids"] == "0"
    assert told["enable_kv_cache_reuse"] == "true"
    assert told["exclude_input_in_output"] == "true"
    assert server.models["tensorrt_llm"]["max_batch_size"] == [8]
    assert made.probes.generation is not None
    assert made.probes.generation.wire == "triton_ids"
    assert any("token ids" in note for note in made.notes)


def test_warm_up_stands_on_the_inner_model_in_every_length_that_the_engine_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(tmp_path / "engine")
    server = loaded(launch(tmp_path), monkeypatch)
    lengths = [each["name"][0] for each in server.models["tensorrt_llm"]["model_warmup"]]
    assert lengths == ["prompt of 8 tokens", "prompt of 64 tokens", "prompt of 288 tokens"]
    one = loaded(launch(tmp_path, engine_service(warmup="single")), monkeypatch)
    none = loaded(launch(tmp_path, engine_service(warmup="none")), monkeypatch)
    assert len(one.models["tensorrt_llm"]["model_warmup"]) == 1
    assert "model_warmup" not in none.models["tensorrt_llm"]


def test_the_ledger_becomes_tokens_and_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path / "engine")
    told = settings(loaded(launch(tmp_path), monkeypatch))
    assert int(told["max_tokens_in_paged_kv_cache"]) == 40 * GIB // 131_072
    assert 0.8 < float(told["kv_cache_free_gpu_mem_fraction"]) < 0.82
    unknown = RUNTIME.launch(triton_context(engine_service(), tmp_path), assignment(memory=()))
    assert any("memory need is not known" in note for note in unknown.notes)


def test_doors_that_nobody_asked_for_are_shut_and_the_prefix_is_the_attempts_own(tmp_path: Path) -> None:
    engine(tmp_path / "engine")
    one = tritonserver.parse(list(launch(tmp_path).argv[1:]))
    two = tritonserver.parse(list(launch(tmp_path, token="another").argv[1:]))
    assert (one["http-address"], one["http-port"]) == ("127.0.0.1", 8001)
    assert (one["allow-grpc"], one["allow-metrics"]) == (False, False)
    assert one["strict-readiness"] is True
    assert one["exit-on-error"] is True
    assert one["exit-timeout-secs"] == 8
    assert one["backend-config"] != two["backend-config"]


def test_more_ports_are_opened_where_asked_and_tested_before_the_start(tmp_path: Path) -> None:
    engine(tmp_path / "engine")
    made = launch(tmp_path, engine_service(options={"grpc_port": 9001, "metrics_port": 9002, "log_verbose": 1}))
    told = tritonserver.parse(list(made.argv[1:]))
    assert (told["allow-grpc"], told["grpc-port"], told["grpc-address"]) == (True, 9001, "127.0.0.1")
    assert (told["allow-metrics"], told["metrics-port"]) == (True, 9002)
    assert told["log-verbose"] == 1
    assert made.ports == {"grpc_port": 9001, "metrics_port": 9002}


def test_with_the_back_ends_templates_text_goes_in_and_comes_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(tmp_path / "engine")
    folder = templates(tmp_path / "templates")
    made = launch(tmp_path, engine_service(canary=None, options={"backend_dir": str(folder)}))
    server = loaded(made, monkeypatch)
    assert sorted(server.models) == ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm"]
    before = server.models["preprocessing"]["parameters"]
    assert before[0]["value"][0]["string_value"] == [str(tmp_path)]
    assert before[1]["value"][0]["string_value"] == ["${not_filled}"], "the back end takes it for 'not set'"
    told = settings(server)
    assert told["executor_worker_path"] == "/opt/tritonserver/backends/tensorrtllm/worker"
    assert told["gpu_device_ids"] == "0"
    assert server.models["tensorrt_llm"]["instance_group"] == [{"count": [1], "kind": ["KIND_CPU"]}]
    generation = made.probes.generation
    assert generation is not None
    assert (generation.path, generation.wire) == ("/v2/models/ensemble", "triton")
    assert [probe.path for probe in made.probes.warmup][:1] == ["/v2/models/ensemble/generate"]


def test_business_logic_may_be_the_entry_in_place_of_the_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(tmp_path / "engine")
    folder = templates(tmp_path / "templates")
    (folder / "preprocessing").rename(folder / "tensorrt_llm_bls")
    options = {"backend_dir": str(folder), "entry": "bls"}
    with pytest.raises(ToolkitError, match="has no preprocessing"):
        launch(tmp_path, engine_service(canary=None, options=options))
    shutil.copytree(folder / "tensorrt_llm_bls", folder / "preprocessing")
    config = folder / "tensorrt_llm_bls" / "config.pbtxt"
    config.write_text(
        config.read_text().replace('"preprocessing"', '"tensorrt_llm_bls"').replace("preprocessing_", "bls_")
    )
    made = launch(tmp_path, engine_service(canary=None, options=options))
    server = loaded(made, monkeypatch)
    assert "ensemble" not in server.models
    assert server.models["tensorrt_llm_bls"]["instance_group"][0]["count"] == [8]
    assert made.probes.generation is not None
    assert made.probes.generation.path == "/v2/models/tensorrt_llm_bls"


def test_two_attempts_meet_no_shared_memory_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path / "engine")
    made = launch(tmp_path)
    launch_files.write(made.files)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-0")
    living = tritonserver.Server(tritonserver.parse(list(made.argv[1:])))
    living.load()
    try:
        with pytest.raises(tritonserver.RefusedError, match="shared memory"):
            loaded(made, monkeypatch)
        loaded(launch(tmp_path, token="of the next attempt"), monkeypatch)
    finally:
        living.leave()


def test_a_placeholder_that_nothing_fills_is_told_with_file_and_line(tmp_path: Path) -> None:
    engine(tmp_path / "engine")
    folder = templates(tmp_path / "templates", inner="version_policy: { latest { num_versions: ${versions} } }")
    options = {"backend_dir": str(folder)}
    with pytest.raises(ToolkitError, match=r"tensorrt_llm/config.pbtxt: line \d+: '\$\{versions") as caught:
        launch(tmp_path, engine_service(canary=None, options=options))
    assert "fill" in (caught.value.hint or "")
    made = launch(tmp_path, engine_service(canary=None, options={**options, "fill": {"versions": 1}}))
    text = made.files[tmp_path / "run" / "repository" / "tensorrt_llm" / "config.pbtxt"]
    assert pbtxt.read(text)["version_policy"] == [{"latest": [{"num_versions": [1]}]}]


def test_a_folder_without_templates_is_told(tmp_path: Path) -> None:
    engine(tmp_path / "engine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToolkitError, match=r"has no preprocessing/config\.pbtxt"):
        launch(tmp_path, engine_service(canary=None, options={"backend_dir": str(tmp_path / "empty")}))


def test_without_paged_context_attention_reuse_is_off_and_what_needs_it_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine(tmp_path / "engine", paged=False)
    manifest = {"limits": LIMITS, "features": dict.fromkeys(ABLE, False), "tp_size": 1}
    made = launch(tmp_path, engine_manifest=manifest)
    told = settings(loaded(made, monkeypatch))
    assert (told["enable_kv_cache_reuse"], told["enable_chunked_context"]) == ("false", "false")
    for key in ("enable_kv_cache_reuse", "enable_chunked_context"):
        with pytest.raises(ManyFaultsError, match="without paged context attention"):
            launch(tmp_path, engine_service(options={key: True}), engine_manifest=manifest)


def test_the_stand_in_itself_refuses_reuse_on_such_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path / "engine", paged=False)
    with pytest.raises(tritonserver.RefusedError, match="paged context FMHA"):
        loaded(launch(tmp_path), monkeypatch)


def test_an_engine_of_another_release_is_refused(tmp_path: Path) -> None:
    other = Program("tritonserver", "24.12", Path("tritonserver"), "declared", packages={"tensorrt-llm": "0.16.0"})
    with pytest.raises(ManyFaultsError, match=r"built by TensorRT-LLM 0\.15\.0, and the back end of 0\.16\.0"):
        launch(tmp_path, program=other)
    unknown = replace(other, packages={})
    assert any("not known" in note for note in launch(tmp_path, program=unknown).notes)


def test_ranks_are_servers_of_which_the_first_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine(tmp_path / "engine", ranks=2)
    made = launch(
        tmp_path,
        engine_service(gpus=2, tp_size=2),
        2,
        engine_manifest={"limits": LIMITS, "features": ABLE, "tp_size": 2},
        log_dir=tmp_path / "logs",
    )
    assert made.argv[0] == "mpirun"
    first, second = (mpirun.parse(part) for part in mpirun.split(list(made.argv[1:])))
    assert first[0]["bind"] == ["none"]
    assert first[0]["output"] == [str(tmp_path / "logs" / "rank")]
    assert "COEXIST_TOKEN" not in first[0]["export"]
    assert first[0]["export"] == second[0]["export"]
    for (_, program), cpus in ((first, "0-1"), (second, "2-3")):
        assert program[1:7] == ["-I", "-S", str(PIN), "--cpus", cpus, "--"]
    servers = [tritonserver.parse(program[8:]) for _, program in (first, second)]
    assert [each.get("http-port") for each in servers] == [8001, None]
    assert servers[1]["load-model"] == ["tensorrt_llm"]
    assert servers[0]["backend-config"] != servers[1]["backend-config"]
    for _, program in (first, second):
        server = loaded(made, monkeypatch, tuple(program[7:]), OMPI_COMM_WORLD_SIZE="2")
        assert settings(server)["gpu_device_ids"] == "0,1"


def repository(folder: Path, **models: str) -> Path:
    for name, config in models.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
    return folder


def repository_service(folder: Path, **keys: Any) -> Service:
    return service(runtime="triton", model=folder, **{"gpus": 1, "canary": ASK, **keys})


def repository_launch(folder: Path, gpus: int = 1, **keys: Any) -> Launch:
    made = repository_service(folder, **keys)
    RUNTIME.check("llm", made)
    return RUNTIME.launch(context(made, model_dir=folder), assignment(gpus))


IDENTITY = """
backend: "identity"
max_batch_size: 1
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


def test_a_repository_that_is_there_is_served_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repository(tmp_path / "mine", echo=IDENTITY)
    made = repository_launch(folder)
    assert made.files == {}
    assert "--disable-auto-complete-config" not in made.argv, "its configuration may leave things to Triton"
    assert list(loaded(made, monkeypatch).models) == ["echo"]
    assert made.probes.canary is not None
    assert made.probes.canary.request is not None
    assert made.probes.generation is not None
    assert made.probes.generation.kind == "request"


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ('backend: "tensorrtllm" instance_group [ { gpus: [ 0 ] } ]', "instance_group names 'gpus'"),
        (
            'backend: "tensorrtllm" parameters { key: "gpu_device_ids" value { string_value: "0,1" } }',
            "gpu_device_ids names device 1, and the service has 1",
        ),
        ("backend: tensorrtllm {", "cannot be read: line 1"),
    ],
)
def test_a_repository_that_would_not_do_what_it_says_is_refused(tmp_path: Path, config: str, what: str) -> None:
    folder = repository(tmp_path / "mine", tensorrt_llm=config)
    with pytest.raises(ManyFaultsError, match=what) as caught:
        repository_launch(folder)
    assert str(folder / "tensorrt_llm" / "config.pbtxt") in str(caught.value)


def test_an_instance_group_with_gpus_is_fine_beside_gpu_device_ids_and_elsewhere(tmp_path: Path) -> None:
    ids = 'parameters { key: "gpu_device_ids" value { string_value: "0" } }'
    folder = repository(
        tmp_path / "mine",
        tensorrt_llm=f'backend: "tensorrtllm" instance_group [ {{ gpus: [ 0 ] }} ] {ids}',
        other='backend: "onnxruntime" instance_group [ { gpus: [ 0 ] } ]',
    )
    assert repository_launch(folder).argv[0] == "tritonserver"


def test_warm_up_of_an_ensemble_is_told(tmp_path: Path) -> None:
    folder = repository(tmp_path / "mine", ensemble='platform: "ensemble" model_warmup [ { name: "x" } ]')
    assert any("model_warmup of an ensemble" in note for note in repository_launch(folder).notes)


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"canary": None}, "nothing tells whether this service answers rightly"),
        ({"gpus": 2}, "is 1 ranks, not 2 GPUs"),
        ({"attention": "sdpa"}, "Triton chooses no attention"),
        (
            {"options": {"enable_kv_cache_reus": True}},
            "unknown option .* 'enable_kv_cache_reuse'",
        ),
        ({"options": {"gpu_device_ids": "3"}}, "'gpu_device_ids' can't be set here"),
        ({"options": {"enable_kv_cache_reuse": "yes"}}, "neither true nor false"),
        ({"options": {"kv_cache_free_gpu_mem_fraction": 1.5}}, "no fraction between 0 and 1"),
        ({"options": {"grpc_port": 0}}, "no port"),
        ({"options": {"backend_dir": "relative"}}, "no absolute path"),
        ({"options": {"batch_scheduler_policy": "fast"}}, "none of guaranteed_no_evict, max_utilization"),
        ({"options": {"fill": {"x": 1}}}, "'fill' fills templates"),
        ({"options": {"fill": [1], "backend_dir": "/x"}}, "no mapping"),
        ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "can't be set here"),
    ],
)
def test_what_triton_does_not_offer_is_refused(keys: Mapping[str, Any], what: str) -> None:
    with pytest.raises(ToolkitError, match=what):
        RUNTIME.check("llm", engine_service(**keys))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"options": {"enable_kv_cache_reuse": True}}, "'enable_kv_cache_reuse' is for an engine"),
        ({"options": {"backend_dir": "/x"}}, "'backend_dir' is for an engine"),
        ({"tp_size": 2, "gpus": 2}, "'tp_size' is for an engine"),
        ({"fmha": "disable"}, "'fmha' is for engines"),
        ({"canary": None}, "nothing tells"),
    ],
)
def test_a_repository_of_its_own_says_the_rest_itself(tmp_path: Path, keys: Mapping[str, Any], what: str) -> None:
    with pytest.raises(ToolkitError, match=what):
        RUNTIME.check("llm", repository_service(tmp_path, **keys))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"engine_manifest": {"tp_size": 2}}, "built for tp_size 2, the service has tp_size 1"),
        ({"engine_manifest": {"plugin_config": {"context_fmha": True}}}, "its engine is built with 'fmha: enable'"),
    ],
)
def test_an_engine_that_is_not_what_is_asked_for_is_refused(
    tmp_path: Path, changes: Mapping[str, Any], what: str
) -> None:
    with pytest.raises(ManyFaultsError, match=what):
        launch(tmp_path, engine_service(fmha="disable"), **changes)


def test_a_batch_over_the_engines_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="max_batch_size 9 is over the engine's own, 8"):
        launch(tmp_path, engine_service(options={"max_batch_size": 9}))


def test_the_plan_of_another_machine_needs_no_files_of_this_one(tmp_path: Path) -> None:
    made = engine_service(canary=None, options={"backend_dir": "/over/there"})
    shown = launch(tmp_path, made, engine_manifest=None)
    assert shown.argv[0] == "tritonserver"
    assert shown.files == {}


def test_in_a_container_ranks_are_not_pinned_one_by_one(tmp_path: Path) -> None:
    made = engine_service(gpus=2, tp_size=2, environment="box")
    manifest = {"limits": LIMITS, "features": ABLE, "tp_size": 2}
    given = triton_context(made, tmp_path, engine_manifest=manifest)
    environments = {"box": Environment.model_validate({"image": "x"})}
    boxed = Deployment(version=1, name="two", environments=environments, services={"llm": made})
    shown = RUNTIME.launch(replace(given, deployment=boxed), assignment(2))
    assert str(PIN) not in shown.argv
    assert "PATH" not in shown.argv, "it is the image's own there"
    assert "--output-filename" not in shown.argv, "its folder is not in the container"
    assert any("not pinned" in note for note in shown.notes)


def test_the_release_of_the_back_end_is_what_is_installed_or_declared() -> None:
    found = RUNTIME.program(None, Path("python3"), {"TensorRT_LLM": "0.15.0", "tritonserver": "24.11"})
    assert found is not None
    assert (found.version, found.packages["tensorrt-llm"], found.origin) == ("24.11", "0.15.0", "declared")
    assert str(found.executable) == "tritonserver", "PATH has it beside the interpreter, or the image's own"


def test_a_service_without_gpus_is_noted_as_one_that_needs_them(tmp_path: Path) -> None:
    engine(tmp_path / "engine")
    made = launch(tmp_path, engine_service(gpus=0), gpus=0)
    assert made.env["CUDA_VISIBLE_DEVICES"] == ""
    assert any("the plan gives it no GPU" in note for note in made.notes)
