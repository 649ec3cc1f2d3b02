from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.runtimes.conftest import context, flag, service
from tests.standins import mpirun, trtllm_serve
from toolkit.config.models import Deployment, Recipe, Service
from toolkit.environments.model import Distribution, Environment, Layout
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.runtimes.base import Assignment, Context, DeviceMemory, Launch, Program
from toolkit.runtimes.mpi import PIN
from toolkit.runtimes.trtllm import TrtllmRuntime
from toolkit.units import GIB

RELEASES = (
    *("0.15.0", "0.16.0", "0.17.0", "0.18.2", "0.19.0", "0.20.0", "0.21.0", "1.0.0", "1.1.0", "1.2.0", "1.2.1"),
    *("1.3.0rc3", "1.3.0rc7", "1.3.0rc20", "1.3.0rc21"),
)
ENGINES = [each for each in RELEASES if each != "1.3.0rc21"]
MODELS = [each for each in RELEASES if each not in ("0.15.0", "0.16.0", "0.17.0")]
WITH_FILE = [each for each in MODELS if each != "0.18.2"]
ABLE = dict.fromkeys(("kv_cache_reuse", "chunked_prefill", "draft_tokens"), True)
UNABLE = dict.fromkeys(ABLE, False)
LIMITS = {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096}
MEMORY = DeviceMemory(80 * GIB, 60 * GIB, GIB, 20 * GIB, 131_072, 32, 75 * GIB, 70 * GIB)
RUNTIME = TrtllmRuntime(as_root=False)


def assignment(gpus: int = 1, **changes: Any) -> Assignment:
    known: dict[str, Any] = {
        "cpus": (0, 1, 2, 3),
        "port": 8001,
        "device_uuids": tuple(f"GPU-{number}" for number in range(gpus)),
        "device_indices": tuple(range(gpus)),
        "budget_bytes": (60 * GIB,) * gpus,
        "rank_cpus": ((0, 1), (2, 3)) if gpus == 2 else (),
        "memory": (MEMORY,) * gpus,
    }
    return Assignment(**{**known, **changes})


def program(release: str | None, folder: Path = Path("/env"), origin: Any = "installed") -> Program:
    return Program("tensorrt-llm", release, folder / "bin" / "trtllm-serve", origin)


def engine_service(**keys: Any) -> Service:
    return service(runtime="trtllm", engine="llm", **{"gpus": keys.get("tp_size", 1), **keys})


def model_service(**keys: Any) -> Service:
    return service(runtime="trtllm", model="/models/llama", **{"gpus": keys.get("tp_size", 1), **keys})


def facts(release: str, able: dict[str, bool] = ABLE, **changes: Any) -> dict[str, Any]:
    fused = able is ABLE
    plugins = {"context_fmha": fused, "use_paged_context_fmha": fused}
    return {"release": release, "tp_size": 1, "pp_size": 1, "limits": LIMITS, "features": able,
            "plugin_config": plugins, **changes}  # fmt: skip


def engine_context(made: Service, release: str = "1.2.0", **changes: Any) -> Context:
    fmha = changes.pop("fmha", "enable")
    recipe = Recipe(version=1, name="llm", builder="trtllm", model=Path("/models/llama"), fmha=fmha)
    told = facts(release, ABLE if fmha == "enable" else UNABLE, tp_size=made.tp_size, pp_size=made.pp_size)
    known: dict[str, Any] = {
        "program": program(release), "engine_dir": Path("/engines/3f9a"), "engine_manifest": told, "recipe": recipe,
        "tokenizer_dir": Path("/models/llama"), "run_dir": Path("/run/llm"),
    }  # fmt: skip
    return context(made, **{**known, **changes})


def model_context(made: Service, release: str = "1.2.0", **changes: Any) -> Context:
    known = {"program": program(release), "model_dir": Path("/models/llama"), "run_dir": Path("/run/llm")}
    return context(made, **{**known, **changes})


def launch(made: Service, release: str = "1.2.0", *, given: Assignment | None = None, **changes: Any) -> Launch:
    RUNTIME.check("llm", made)
    around = engine_context if made.engine else model_context
    return RUNTIME.launch(around(made, release, **changes), given or assignment(max(made.gpus.size, 1)))


def extra(made: Launch) -> dict[str, Any]:
    (text,) = made.files.values()
    return dict(yaml.safe_load(text))


def refusal(made: Service, release: str = "1.2.0", **changes: Any) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        launch(made, release, **changes)
    return caught.value


def accepted(made: Launch, release: str, tmp_path: Path) -> trtllm_serve.Server:
    """The server that the release makes of a command line; it refuses what the release would."""
    argv = list(made.argv)
    if argv[0] == "mpirun":
        _, rank = mpirun.parse(argv[1:])
        argv = rank[rank.index("--") + 1 :] if "--" in rank else rank
        assert Path(argv.pop(0)).name == "trtllm-llmapi-launch"
    assert Path(argv[0]).name == "trtllm-serve"
    for path, text in made.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    model, args = trtllm_serve.parse(argv[1:], release)
    server = trtllm_serve.Server(release, {}, model, args, {}, {}, environ=made.env)
    pytorch = trtllm_serve.backend_of(server) == "pytorch"
    server.extra = trtllm_serve.options_file(args.get("extra_llm_api_options"), release, pytorch)
    trtllm_serve.load(server)
    return server


def hf_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.mark.parametrize(
    ("release", "tp_size", "fmha", "launcher"),
    list(itertools.product(ENGINES, (1, 2), ("enable", "disable"), ("pool", "mpirun"))),
)
def test_every_release_accepts_the_command_for_an_engine(
    release: str, tp_size: int, fmha: str, launcher: str, tmp_path: Path
) -> None:
    folder = trtllm_serve.engine(tmp_path / "3f9a", release, tp_size=tp_size, fused=fmha == "enable")
    made = launch(
        engine_service(tp_size=tp_size, options={"launcher": launcher}),
        release,
        fmha=fmha,
        engine_dir=folder,
        tokenizer_dir=hf_folder(tmp_path),
        run_dir=tmp_path / "run",
    )
    server = accepted(made, release, tmp_path)
    assert server.engine is not None
    assert server.args["port"] == 8001
    assert server.args["max_batch_size"] == 8
    if fmha == "disable" and made.files:
        assert server.extra["kv_cache_config"]["enable_block_reuse"] is False
        assert server.extra["enable_chunked_prefill"] is False


@pytest.mark.parametrize(
    ("release", "tp_size", "attention", "launcher"),
    list(itertools.product(WITH_FILE, (1, 2), ("auto", "vanilla"), ("pool", "mpirun"))),
)
def test_every_release_accepts_the_command_for_a_model(
    release: str, tp_size: int, attention: str, launcher: str, tmp_path: Path
) -> None:
    made = launch(
        model_service(tp_size=tp_size, attention=attention, options={"launcher": launcher}),
        release,
        model_dir=hf_folder(tmp_path),
        run_dir=tmp_path / "run",
    )
    server = accepted(made, release, tmp_path)
    assert trtllm_serve.backend_of(server) == "pytorch"
    assert trtllm_serve.attention(server) == ("VANILLA" if attention == "vanilla" else "TRTLLM")


def test_0_18_2_serves_a_model_with_its_own_attention_only(tmp_path: Path) -> None:
    made = launch(model_service(), "0.18.2", model_dir=hf_folder(tmp_path))
    assert accepted(made, "0.18.2", tmp_path).args["backend"] == "pytorch"
    assert not made.files
    assert "no options file" in refusal(model_service(attention="vanilla"), "0.18.2").what


@pytest.mark.parametrize("release", ["0.15.0", "0.17.0"])
def test_where_a_model_would_become_an_engine_unseen_it_is_refused(release: str) -> None:
    fault = refusal(model_service(), release)
    assert fault.code == "no_pytorch_mode"
    assert "recipe" in str(fault.hint)


@pytest.mark.parametrize("release", ["1.3.0rc21", "1.4.0"])
def test_an_engine_where_the_mode_is_gone_is_refused_with_the_way_out(release: str) -> None:
    fault = refusal(engine_service(), release)
    assert fault.code == "no_engine_mode"
    assert "model: PATH" in str(fault.hint)


def test_releases_without_trtllm_serve_are_refused() -> None:
    fault = refusal(engine_service(), "0.14.0")
    assert (fault.code, "0.15.0" in str(fault.hint)) == ("no_trtllm_serve", True)
    assert refusal(engine_service(), "nightly").code == "trtllm_version"


def test_an_environment_without_tensorrt_llm_is_told() -> None:
    assert refusal(engine_service(), program=program(None)).code == "no_program"


def test_a_release_that_nobody_knows_is_assumed_and_said() -> None:
    made = launch(engine_service(), program=program(None, origin="assumed"))
    assert any("which TensorRT-LLM" in note for note in made.notes)


def test_unsure_rows_are_noted() -> None:
    assert any("nearest_dev" in note for note in launch(engine_service(), "0.16.0").notes)
    assert not any("trtllm-serve 1.2.0 are" in note for note in launch(engine_service(), "1.2.0").notes)


def test_the_program_is_the_one_beside_the_interpreter_and_its_release_is_its_metadata() -> None:
    info = Path("/env/lib/tensorrt_llm-1.2.0.dist-info")
    found = Environment(
        Layout("venv", Path("/env")), distributions=(Distribution("tensorrt-llm", "1.2.0", info, info),)
    )
    known = RUNTIME.program(found, Path("/env/bin/python"), {})
    assert known is not None
    assert (known.version, known.executable, known.origin) == ("1.2.0", Path("/env/bin/trtllm-serve"), "installed")
    assert known.options is not None
    assert known.options.find("--max_num_tokens") is not None
    declared = RUNTIME.program(None, Path("python3"), {"tensorrt_llm": "1.1.0"})
    assert declared is not None
    assert (declared.version, declared.executable, declared.origin) == ("1.1.0", Path("trtllm-serve"), "declared")


def test_the_tokenizer_of_an_engine_is_its_model_s() -> None:
    assert flag(launch(engine_service()).argv, "--tokenizer") == "/models/llama"
    bare = Recipe(version=1, name="llm", builder="trtllm", checkpoint=Path("ckpt"))
    fault = refusal(engine_service(), recipe=bare, tokenizer_dir=None)
    assert fault.code == "no_tokenizer"
    made = launch(engine_service(options={"tokenizer": "/tok"}), recipe=bare, tokenizer_dir=None)
    assert flag(made.argv, "--tokenizer") == "/tok"
    assert refusal(engine_service(options={"tokenizer": "/tok"})).code == "option_owned"


def test_an_engine_for_another_number_of_ranks_is_refused() -> None:
    told = facts("1.2.0", tp_size=2)
    fault = refusal(engine_service(), engine_manifest=told)
    assert "tp_size 2" in fault.what
    assert "'tp_size: 2'" in str(fault.hint)
    assert "2 ranks, not 1 GPUs" in refusal(engine_service(tp_size=2, gpus=1)).what


def test_an_engine_of_another_release_is_refused() -> None:
    assert refusal(engine_service(), engine_manifest=facts("1.1.0")).code == "release_differs"


def test_an_engine_of_the_other_builder_is_refused() -> None:
    other = Recipe(version=1, name="llm", builder="torch", model=Path("/models/llama"))
    assert "runtime: torch" in str(refusal(engine_service(), recipe=other).hint)


@pytest.mark.parametrize("name", ["max_batch_size", "max-num-tokens", "max_seq_len"])
def test_options_above_the_engine_s_limits_are_refused(name: str) -> None:
    assert refusal(engine_service(options={name: 1 << 20})).code == "limits"
    assert flag(launch(engine_service(options={name: 4})).argv, f"--{name.replace('-', '_')}") == "4"


def test_an_engine_that_is_not_built_yet_goes_by_its_recipe() -> None:
    made = launch(engine_service(), fmha="disable", engine_manifest={})
    assert flag(made.argv, "--max_num_tokens") == "8192"
    assert extra(made)["kv_cache_config"]["enable_block_reuse"] is False


@pytest.mark.parametrize(
    "options",
    [
        {"enable_chunked_prefill": True},
        {"extra_llm_api_options": {"kv_cache_config": {"enable_block_reuse": True}}},
        {"extra_llm_api_options": {"speculative_config": {"decoding_type": "Eagle"}}},
    ],
)
def test_what_needs_paged_context_attention_is_refused_where_there_is_none(options: dict[str, Any]) -> None:
    fault = refusal(engine_service(options=options), fmha="disable")
    assert fault.code == "fmha"
    assert "without paged context attention" in fault.what
    vanilla = refusal(model_service(attention="vanilla", options=options))
    assert "attention: vanilla" in vanilla.what
    assert launch(engine_service(options=options)).argv


def test_reuse_of_an_able_engine_follows_its_recipe_and_the_service_may_say_otherwise() -> None:
    assert extra(launch(engine_service()))["kv_cache_config"]["enable_block_reuse"] is False
    written = {"extra_llm_api_options": {"kv_cache_config": {"enable_block_reuse": True}, "print_iter_log": True}}
    made = extra(launch(engine_service(options=written)))
    assert made["kv_cache_config"]["enable_block_reuse"] is True
    assert made["kv_cache_config"]["max_tokens"] > 0
    assert made["print_iter_log"] is True


def test_where_reuse_cannot_be_told_it_is_said() -> None:
    recipe = Recipe(version=1, name="llm", builder="trtllm", model=Path("/m"), kv_cache={"reuse": True})
    assert any("its own default" in note for note in launch(engine_service(), "0.17.0", recipe=recipe).notes)
    assert any("no paged context" in note for note in launch(engine_service(), "0.17.0", fmha="disable").notes)


def test_the_budget_becomes_a_fraction_of_what_is_free_and_a_number_of_tokens() -> None:
    made = launch(engine_service())
    kv = extra(made)["kv_cache_config"]
    assert kv["max_tokens"] == 40 * GIB // 131_072
    assert kv["free_gpu_memory_fraction"] == pytest.approx(40 / 49, abs=1e-4)
    assert flag(launch(engine_service()).argv, "--kv_cache_free_gpu_memory_fraction") == str(
        kv["free_gpu_memory_fraction"]
    )


def test_without_an_options_file_the_fraction_alone_must_hold() -> None:
    made = launch(engine_service(), "0.18.2")
    assert float(flag(made.argv, "--kv_cache_free_gpu_memory_fraction")) == pytest.approx(40 / 54, abs=1e-4)


def test_where_the_need_is_not_known_nothing_is_made_up() -> None:
    unknown = assignment(memory=(DeviceMemory(80 * GIB),))
    made = launch(engine_service(), given=unknown)
    assert "--kv_cache_free_gpu_memory_fraction" not in made.argv
    assert any("gpu_memory" in note for note in made.notes)


def test_a_sharer_that_cannot_be_held_to_its_part_is_refused() -> None:
    parts = assignment(memory=(DeviceMemory(80 * GIB, 40 * GIB, GIB),))
    shared = engine_service(gpus={"count": 1, "share": True}, gpu_memory="40GiB")
    assert refusal(shared, given=parts).code == "no_budget"
    elsewhere = launch(shared, given=parts, program=program("1.2.0", origin="declared"))
    assert any("may pass its budget" in note for note in elsewhere.notes)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("host", "0.0.0.0", "'host' of the service"),
        ("port", 9, "'port' of the service"),
        ("backend", "pytorch", "'engine:' or 'model:'"),
        ("tp_size", 2, "'tp_size' of the service"),
        ("tensor-parallel-size", 2, "'tp_size' of the service"),
        ("kv_cache_free_gpu_memory_fraction", 0.5, "gpu_memory"),
        ("gpus_per_node", 8, "plan"),
        ("config", "/my.yaml", "the keys themselves"),
        ("extra_llm_api_options", {"kv_cache_config": {"free_gpu_memory_fraction": 0.5}}, "gpu_memory"),
        ("extra_llm_api_options", {"attn_backend": "FLASHINFER"}, "'attention' of the service"),
    ],
)
def test_what_the_plan_decides_is_refused_with_the_reason(key: str, value: Any, reason: str) -> None:
    with pytest.raises(ManyFaultsError) as caught:
        launch(engine_service(options={key: value}))
    (fault,) = caught.value.errors
    assert reason in str(fault.hint)
    assert str(fault.where).startswith(f"services.llm.options.{key}")


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        ({"max_batchsize": 4}, "no option 'max_batchsize'", "max_batch_size"),
        ({"log_level": "loud"}, "'log_level' takes one of internal_error, ", ""),
        ({"max_batch_size": "4k"}, "'max_batch_size' takes a whole number, not '4k'", ""),
        ({"max_batch_size": True}, "takes a whole number, not true", ""),
        ({"kv_cache_dtype": "fp8"}, "no option", "1.3.0rc7"),
        ({"trust_remote_code": "yes"}, "takes true or false, not 'yes'", ""),
        ({"launcher": "srun"}, "none of pool, mpirun", "pins each rank"),
        ({"ep_size": 3}, "does not divide", ""),
    ],
)
def test_options_are_checked_against_the_release(options: dict[str, Any], what: str, hint: str) -> None:
    fault = refusal(engine_service(options=options))
    assert what in fault.what
    assert hint in str(fault.hint)


def test_all_wrong_options_are_told_at_once() -> None:
    with pytest.raises(ManyFaultsError) as caught:
        launch(engine_service(options={"portt": 1, "host": "x", "log_level": "loud"}))
    assert len(caught.value.errors) == 3


def test_options_that_are_right_are_passed_on() -> None:
    made = launch(
        engine_service(options={"log_level": "verbose", "trust_remote_code": True, "reasoning-parser": "qwen3"})
    )
    assert flag(made.argv, "--log_level") == "verbose"
    assert flag(made.argv, "--reasoning_parser") == "qwen3"
    assert "--trust_remote_code" in made.argv


def test_a_model_cannot_be_served_without_fused_attention() -> None:
    with pytest.raises(ToolkitError) as caught:
        RUNTIME.check("llm", model_service(fmha="disable"))
    assert "Isolate" in str(caught.value.hint)
    with pytest.raises(ToolkitError, match="fa2"):
        RUNTIME.check("llm", model_service(attention="fa2"))
    with pytest.raises(ToolkitError, match="when it is built"):
        RUNTIME.check("llm", engine_service(attention="vanilla"))
    assert refusal(engine_service(fmha="disable")).code == "fmha_mismatch"


def test_vanilla_says_what_it_costs_and_is_looked_for_in_the_log() -> None:
    made = launch(model_service(attention="vanilla"))
    assert extra(made)["attn_backend"] == "VANILLA"
    assert any("costs speed" in note for note in made.notes)
    assert any("can't be observed" in note for note in made.notes)
    assert [check.wanted for check in made.log_checks] == [False, False]
    assert not launch(model_service()).log_checks


def test_ranks_of_a_pool_share_the_mask_and_it_is_said() -> None:
    made = launch(engine_service(tp_size=2))
    assert Path(made.argv[0]).name == "trtllm-serve"
    assert any("share the CPUs 0-3" in note for note in made.notes)


def test_mpirun_binds_nothing_and_each_rank_pins_itself() -> None:
    made = launch(engine_service(tp_size=2, options={"launcher": "mpirun"}))
    options, rank = mpirun.parse(list(made.argv[1:]))
    assert (options["count"], options["bind"]) == (["2"], ["none"])
    assert "--oversubscribe" in options
    assert "--allow-run-as-root" not in options
    assert options["output"] == ["logs/rank"]
    assert set(options["export"]) == set(made.env) - {"COEXIST_TOKEN"}
    assert rank[:7] == ["/opt/env/bin/python", "-I", "-S", str(PIN), "--ranks", "0-1/2-3", "--"]
    assert made.rank_logs
    assert made.programs == ("/env/bin/trtllm-serve", "/env/bin/trtllm-llmapi-launch")
    as_root = TrtllmRuntime(as_root=True).launch(
        engine_context(engine_service(options={"launcher": "mpirun"})), assignment()
    )
    assert "--allow-run-as-root" in as_root.argv
    assert as_root.env["OMPI_ALLOW_RUN_AS_ROOT"] == as_root.env["PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"


def test_ranks_in_a_container_are_not_pinned_one_by_one() -> None:
    made = engine_service(options={"launcher": "mpirun"}, environment="box")
    services = {"llm": made.model_dump(mode="json", exclude_unset=True)}
    environments = {"box": {"image": "tensorrt-llm:1.2.0"}}
    told = {"version": 1, "name": "two", "environments": environments, "services": services}
    told["engines"] = {"llm": {"recipe": "r.yaml"}}
    fault = refusal(made, deployment=Deployment.model_validate(told))
    assert "container" in fault.what


def test_workers_are_told_to_keep_their_mask_from_1_2_on() -> None:
    assert launch(engine_service(), "1.2.0").env["TLLM_NUMA_AWARE_WORKER_AFFINITY"] == "0"
    assert "TLLM_NUMA_AWARE_WORKER_AFFINITY" not in launch(engine_service(), "1.1.0").env
    for release in ("0.15.0", "1.2.0"):  # who starts its ranks itself is told to leave their masks alone
        made = launch(engine_service(), release).env
        assert (made["OMPI_MCA_hwloc_base_binding_policy"], made["OMPI_MCA_rmaps_base_inherit"]) == ("none", "1")
        assert made["PRTE_MCA_hwloc_default_binding_policy"] == "none"
        assert "PRTE_ALLOW_RUN_AS_ROOT" not in made
    own = engine_service(env={"TLLM_NUMA_AWARE_WORKER_AFFINITY": "1"})
    assert launch(own).env["TLLM_NUMA_AWARE_WORKER_AFFINITY"] == "1"


def test_the_environment_holds_nothing_of_slurm_or_secrets() -> None:
    made = launch(
        engine_service(), environ={"SLURM_PROCID": "3", "PMI_RANK": "1", "HF_TOKEN": "secret", "PATH": "/bin"}
    )
    assert not [name for name in made.env if name.startswith(("SLURM", "PMI", "HF_TOKEN"))]
    assert made.env["CUDA_VISIBLE_DEVICES"] == "GPU-0"


@pytest.mark.parametrize(("release", "path"), [("1.2.0", "/v1/completions"), ("1.3.0rc3", "/health_generate")])
def test_loaded_means_that_something_was_generated(release: str, path: str) -> None:
    probes = launch(engine_service(), release).probes
    assert probes.live is not None
    assert probes.deep is not None
    assert (probes.live.path, probes.deep.path) == ("/health", path)
    assert probes.generation is not None
    assert (probes.generation.model, probes.generation.max_input_tokens) == ("3f9a", 512)


def test_warm_up_stays_within_the_engine_s_limits() -> None:
    probes = launch(engine_service()).probes
    prompts = [probe.body["prompt"] for probe in probes.warmup]
    assert max(len(prompt) for prompt in prompts if isinstance(prompt, list)) == 8
    assert max(len(prompt.split()) for prompt in prompts if isinstance(prompt, str)) <= 256


def test_traits_say_what_it_cannot_do() -> None:
    assert not RUNTIME.traits.can_drain
    assert RUNTIME.traits.answers_before_ready


def test_a_key_of_the_options_file_that_looks_like_a_slip_is_noted() -> None:
    written = {"kv_cache_confg": {}, "kv_cache_config": {"enable_blok_reuse": True, "use_uvm": True}, "moe_config": {}}
    notes = "\n".join(launch(model_service(options={"config": written})).notes)
    assert "'kv_cache_confg' is not known here; did you mean 'kv_cache_config'?" in notes
    assert "'kv_cache_config.enable_blok_reuse' is not known here; did you mean 'enable_block_reuse'?" in notes
    assert notes.count("is not known here; did you mean") == 2
