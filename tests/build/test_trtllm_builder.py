from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.build.children import interrupted_once
from tests.build.trtllm_bench import IMPATIENT, RELEASES, ROOT, TrtllmBench
from tests.standins import trtllm_build as standin
from toolkit.build import describe, trtllm_readback
from toolkit.build.trtllm_machine import BuildGpu, Machine
from toolkit.errors import ToolkitError
from toolkit.units import GIB

ATTENTION_WORDS = ("fmha", "attention", "xqa", "paged_kv", "kv_cache_type", "tokens_per_block")
GPU = BuildGpu(0, "GPU-aa", "NVIDIA H100", "9.0", 80 * GIB)


def options(argv: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(argv[1::2], argv[2::2], strict=True))


@pytest.mark.parametrize("strict", [False, True], ids=["as read", "without what is unsure"])
@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize("fmha", ["enable", "disable"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_command_of_every_release_is_accepted_and_kept(
    release: str, fmha: str, tp_size: int, strict: bool, trtllm: TrtllmBench, capsys: pytest.CaptureFixture[str]
) -> None:
    trtllm.checkpoint(tp_size)
    told = trtllm.describe(f"checkpoint: ckpt\nfmha: {fmha}\n", trtllm_version=release)
    (command,) = told.commands
    argv = [*command.argv[1:]]
    argv[argv.index("--output_dir") + 1] = str(trtllm.folder / "out")
    for cache in {"--timing_cache", "--output_timing_cache"} & set(argv):
        argv[argv.index(cache) + 1] = str(trtllm.folder / "model.cache")
    assert standin.main(argv, {"release": release, "strict": strict}) == 0
    assert "is set to" not in capsys.readouterr().out
    plugins = json.loads((trtllm.folder / "out" / "config.json").read_text())["build_config"]["plugin_config"]
    assert plugins["context_fmha"] is (fmha == "enable")
    if fmha == "disable":
        assert not [name for name, value in plugins.items() if "context_fmha" in name and value]
    chosen = trtllm.choose(release, f"checkpoint: ckpt\nfmha: {fmha}\n")
    assert list(trtllm_readback.switched(trtllm_readback.read(trtllm.folder / "out"), chosen)) == []


@pytest.mark.parametrize("release", RELEASES)
def test_every_attention_option_of_the_release_is_written_out(release: str, trtllm: TrtllmBench) -> None:
    written = options(trtllm.describe(trtllm_version=release).commands[0].argv)
    known = standin.table(release, strict=True)
    expected = {name for name in known if any(word in name for word in ATTENTION_WORDS)}
    if "--kv_cache_type" in written:
        expected.discard("--paged_kv_cache")
    assert expected - set(written) == set()


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_that_was_not_read_itself_says_so(release: str, trtllm: TrtllmBench) -> None:
    notes = " ".join(trtllm.describe(trtllm_version=release).notes)
    firm = ("0.8.0", "0.9.0", "0.10.0", "0.11.0", "0.18.2", "0.19.0", "0.21.0", "1.2.0")
    assert (f"options of trtllm-build {release} are" in notes) is (release not in firm)


@pytest.mark.parametrize("release", ["0.8.0", "0.12.0", "0.21.0", "1.2.0", "1.3.0rc20"])
@pytest.mark.parametrize("fmha", ["enable", "disable"])
@pytest.mark.parametrize("tp_size", [1, 2])
def test_an_engine_is_built_read_back_and_reused(release: str, fmha: str, tp_size: int, trtllm: TrtllmBench) -> None:
    trtllm.install(release)
    trtllm.checkpoint(tp_size)
    text = f"checkpoint: ckpt\nfmha: {fmha}\n"
    built = trtllm.ensure(text)
    assert (built.fmha["asked"], built.fmha["built"], built.fmha["phase"]) == (fmha, fmha, "context")
    assert "level config" in built.fmha["proof"]
    assert "generation keeps its own fused kernels" in built.fmha["proof"]
    assert bool(built.guards) is (fmha == "disable")
    assert sorted(path.name for path in built.path.glob("*.engine")) == [f"rank{n}.engine" for n in range(tp_size)]
    again = trtllm.ensure(text)
    assert (again.reused, again.path, again.fmha) == (True, built.path, built.fmha)


def test_the_published_engine_has_a_hash_for_every_rank(trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(2)
    built = trtllm.ensure()
    (entry,) = trtllm.store.entries()
    assert {"config.json", "rank0.engine", "rank1.engine"} <= set(entry.manifest["files"])
    assert trtllm.store.verify(entry) == ()
    assert entry.path == built.path


def test_disable_fills_the_guards_with_the_estimate(trtllm: TrtllmBench) -> None:
    guards = {row["id"]: row["why"] for row in trtllm.describe("checkpoint: ckpt\nfmha: disable\n").guards}
    assert set(guards) == {
        "kv_cache_reuse_off", "chunked_prefill_off", "draft_tokens_off", "max_input_len_bounded", "workspace_estimated",
    }  # fmt: skip
    assert "512 tokens" in guards["max_input_len_bounded"]
    assert "100.0 MiB" in guards["workspace_estimated"]


@pytest.mark.parametrize(
    ("fail", "code", "says"),
    [
        ("killed", "killed", "was killed with 1 of 2 rank engines written"),
        ("killed_137", "killed", "was killed with 1 of 2 rank engines written"),
        ("no_engine_exit_0", "engine_incomplete", "Engine building failed"),
        ("no_engine_exit_1", "build_failed", "Engine building failed"),
        ("gpu_memory", "gpu_memory", "20.0 GiB"),
        ("no_config", "engine_incomplete", "without an engine"),
        ("empty_rank", "engine_incomplete", "rank0.engine, rank1.engine"),
        ("fmha_left_on", "refused_fmha", "context_fmha: asked disable, built enable"),
        ("switched", "refused_fmha", "use_paged_context_fmha: asked disable, built enable"),
        ("silent_config", "refused_fmha", "does not say"),
        ("lower_limits", "limits", "max_input_len: asked 512, built 256"),
        ("disk_full", "no_space", "no space is left"),
        ("dies", "build_failed", "exit status 1"),
    ],
)
@pytest.mark.parametrize("release", ["0.9.0", "0.21.0"])
def test_each_failure_is_one_clear_error_and_publishes_nothing(
    release: str, fail: str, code: str, says: str, trtllm: TrtllmBench
) -> None:
    trtllm.install(release, fail)
    trtllm.checkpoint(2)
    with pytest.raises(ToolkitError) as caught:
        trtllm.ensure("checkpoint: ckpt\nfmha: disable\n")
    assert caught.value.code == code
    assert says in str(caught.value)
    assert trtllm.published() == []


def test_a_builder_that_hangs_is_ended_and_told(trtllm: TrtllmBench) -> None:
    trtllm.install("0.21.0", "hang")
    with pytest.raises(ToolkitError, match="hung") as caught:
        trtllm.ensure(patience=IMPATIENT)
    assert caught.value.code == "hung"
    assert trtllm.published() == []
    assert all(gone(int(pid)) for pid in (trtllm.folder / "hanging").read_text().split())


def test_ctrl_c_ends_the_builder_and_workers_that_left_its_session(trtllm: TrtllmBench) -> None:
    trtllm.install("0.21.0", "hang_with_children")
    hanging = trtllm.folder / "hanging"
    with interrupted_once(hanging):
        trtllm.ensure()
    pids = [int(pid) for pid in hanging.read_text().split()]
    assert len(pids) == 3
    psutil.wait_procs([psutil.Process(pid) for pid in pids if not gone(pid)], timeout=10)
    assert all(gone(pid) for pid in pids)
    assert trtllm.published() == []


@pytest.mark.parametrize("signals", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_plain_kill_of_the_command_ends_the_builders_whole_tree_and_leaves_nothing(
    signals: int, trtllm: TrtllmBench
) -> None:
    trtllm.install("0.21.0", "hang_with_children")
    recipe, deployment = trtllm.recipe(), trtllm.folder / "two.yaml"
    deployment.write_text(
        f"version: 1\nname: two\nenvironments: {{trtllm: {{python: {trtllm.python}}}}}\n"
        f"engines: {{llm: {{recipe: {recipe.file}, environment: trtllm}}}}\n"
        "services: {llm: {runtime: trtllm, engine: llm, environment: trtllm}}\n"
    )
    environ = {**trtllm.environ, "COEXIST_HOME": str(trtllm.store.root)}
    argv = [sys.executable, "-m", "toolkit.cli", "build", str(deployment), "--json"]
    command = subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    hanging = trtllm.folder / "hanging"
    try:
        while command.poll() is None and not (hanging.exists() and len(hanging.read_text().split()) == 3):
            time.sleep(0.02)
        pids = [int(pid) for pid in hanging.read_text().split()]
        for _ in range(signals):
            command.terminate()
        output, told = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 130, told
    assert json.loads(output)["error"]["code"] == "interrupted"
    psutil.wait_procs([psutil.Process(pid) for pid in pids if not gone(pid)], timeout=10)
    assert all(gone(pid) for pid in pids)
    assert trtllm.published() == []


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_dry_run_writes_nothing(trtllm: TrtllmBench) -> None:
    def seen() -> set[Path]:
        return set(trtllm.folder.rglob("*"))

    trtllm.recipe("checkpoint: ckpt\nfmha: disable\n")
    before = seen()
    trtllm.describe("checkpoint: ckpt\nfmha: disable\n")
    trtllm.describe("checkpoint: ckpt\nfmha: disable\n", trtllm_version="0.12.0")
    assert seen() == before


def test_a_what_if_needs_only_the_config_of_the_checkpoint(trtllm: TrtllmBench) -> None:
    for weights in (trtllm.folder / "ckpt").glob("*.safetensors"):
        weights.unlink()
    recipe = trtllm.recipe()
    nowhere = Path("/nowhere/bin/python")
    told = describe(recipe, nowhere, trtllm.store, trtllm_version="1.2.0", machine=lambda: pytest.fail("was asked"))
    assert told.commands[0].argv[0] == "/nowhere/bin/trtllm-build"


def test_a_dry_run_shows_where_the_real_build_publishes(trtllm: TrtllmBench) -> None:
    planned = trtllm.describe()
    assert (planned.reused, planned.fmha["built"]) == (False, None)
    built = trtllm.ensure()
    assert (planned.path, planned.fingerprint) == (built.path, built.fingerprint)
    assert trtllm.describe().reused is True


def test_only_the_variables_of_a_build_reach_the_builder(trtllm: TrtllmBench) -> None:
    (command,) = trtllm.describe().commands
    assert "SECRET" not in command.env
    assert command.env["PATH"].startswith(str(trtllm.python.parent))


def test_another_release_is_another_engine(trtllm: TrtllmBench) -> None:
    first = trtllm.ensure()
    trtllm.install("1.0.0")
    second = trtllm.ensure()
    assert first.fingerprint != second.fingerprint
    assert len(trtllm.store.entries()) == 2


def test_workers_and_log_level_change_how_not_what(trtllm: TrtllmBench) -> None:
    first = trtllm.ensure()
    assert trtllm.ensure("checkpoint: ckpt\noptions: {workers: 1, log_level: verbose}\n").path == first.path


def test_the_timing_cache_is_kept_and_given_back(trtllm: TrtllmBench) -> None:
    trtllm.ensure()
    second = trtllm.ensure(force=True)
    flags = options(second.commands[-1].argv)
    kept = Path(flags["--input_timing_cache"])
    assert kept.read_text() == "timings\n" * 2
    assert "0.21.0" in kept.parent.name
    assert list(kept.parent.iterdir()) == [kept]


def test_a_failed_build_leaves_the_timing_cache_as_it_was(trtllm: TrtllmBench) -> None:
    trtllm.ensure()
    (kept,) = (trtllm.folder / "home" / "cache").rglob("model.cache")
    trtllm.install("0.21.0", "switched")
    with pytest.raises(ToolkitError):
        trtllm.ensure(force=True)
    assert kept.read_text() == "timings\n"
    assert len(trtllm.store.entries()) == 1


def test_an_engine_is_not_built_where_something_serves(trtllm: TrtllmBench) -> None:
    busy = BuildGpu(0, "GPU-aa", "NVIDIA H100", "9.0", 80 * GIB, ("trtllm-serve (pid 7)",))
    with pytest.raises(ToolkitError, match=r"GPU 0: trtllm-serve \(pid 7\)") as caught:
        trtllm.ensure(machine=Machine((busy,), 64 * GIB))
    assert caught.value.code == "gpu_busy"
    assert trtllm.published() == []


def test_a_free_gpu_of_the_same_kind_builds(trtllm: TrtllmBench) -> None:
    busy = BuildGpu(0, "GPU-aa", "NVIDIA H100", "9.0", 80 * GIB, ("python (pid 7)",))
    free = BuildGpu(1, "GPU-bb", "NVIDIA H100", "9.0", 80 * GIB)
    built = trtllm.ensure(machine=Machine((busy, free), 64 * GIB))
    assert built.commands[-1].env["CUDA_VISIBLE_DEVICES"] == "GPU-bb"


def test_an_engine_that_is_there_is_reused_while_the_gpu_serves(trtllm: TrtllmBench) -> None:
    trtllm.ensure(machine=Machine((GPU,), 64 * GIB))
    busy = BuildGpu(0, "GPU-aa", "NVIDIA H100", "9.0", 80 * GIB, ("trtllm-serve (pid 7)",))
    assert trtllm.ensure(machine=Machine((busy,), 64 * GIB)).reused


def test_too_little_host_memory_is_told_with_both_numbers(trtllm: TrtllmBench) -> None:
    with pytest.raises(ToolkitError, match=r"2\.0 GiB of host memory; 1\.0 GiB") as caught:
        trtllm.ensure(machine=Machine((GPU,), 1 * GIB))
    assert caught.value.details["resource"] == "host_memory"
    assert trtllm.published() == []


def test_ranks_are_built_one_at_a_time_when_memory_is_short(trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(2)
    gpus = (GPU, BuildGpu(1, "GPU-bb", "NVIDIA H100", "9.0", 80 * GIB))
    both = trtllm.ensure(machine=Machine(gpus, 64 * GIB))
    assert options(both.commands[-1].argv)["--workers"] == "2"
    one = trtllm.ensure(machine=Machine(gpus, 3 * GIB), force=True)
    assert options(one.commands[-1].argv)["--workers"] == "1"


def test_an_environment_without_the_program_is_told(trtllm: TrtllmBench) -> None:
    (trtllm.python.parent / "trtllm-build").unlink()
    with pytest.raises(ToolkitError, match="no trtllm-build beside the interpreter"):
        trtllm.ensure()


def test_a_builder_that_falls_back_to_unfused_attention_is_noted(trtllm: TrtllmBench) -> None:
    trtllm.install("0.21.0", "fell_back")
    assert "Fall back to unfused MHA" in " ".join(trtllm.ensure().notes)


def test_an_engine_in_the_old_layout_is_read_back_too(trtllm: TrtllmBench) -> None:
    trtllm.install("0.8.0", "legacy")
    trtllm.checkpoint(2)
    assert trtllm.ensure("checkpoint: ckpt\nfmha: disable\n").fmha["built"] == "disable"


def test_another_tp_size_than_the_checkpoints_is_told(trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(2)
    with pytest.raises(ToolkitError, match="'tp_size' is 4, but the checkpoint was converted for 2") as caught:
        trtllm.describe("checkpoint: ckpt\ntp_size: 4\n", trtllm_version="1.2.0")
    assert "recipe.yaml" in str(caught.value.where)


def test_tp_size_need_not_be_said_again(trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(2, 2)
    argv = trtllm.describe(trtllm_version="0.9.0").commands[0].argv
    assert options(argv)["--workers"] == "4"
    assert not {"--tp_size", "--pp_size"} & set(argv)


def test_a_hugging_face_folder_is_no_checkpoint(trtllm: TrtllmBench) -> None:
    (trtllm.folder / "ckpt" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ToolkitError, match="it is a Hugging Face folder"):
        trtllm.describe(trtllm_version="1.2.0")


def test_the_log_of_a_build_is_kept(trtllm: TrtllmBench) -> None:
    lines: list[str] = []
    trtllm.ensure(report=lines.append)
    assert "TensorRT-LLM version: 0.21.0" in (trtllm.folder / "home" / "logs" / "tiny.build.log").read_text()
    assert any("rank 0 of 1" in line or "1 rank(s)" in line for line in lines)
