from __future__ import annotations

import json
import os

import pytest

from tests.build.trtllm_bench import IMPATIENT, ROOT, TrtllmBench
from tests.standins import convert_checkpoint
from toolkit.errors import ToolkitError

MODEL = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8, "torch_dtype": "bfloat16"}
NAMED = "model: hf\nconvert_script: convert_checkpoint.py\ncheckpoint: made\n"
UNNAMED = "model: hf\nconvert_script: convert_checkpoint.py\n"


@pytest.fixture
def bench(trtllm: TrtllmBench) -> TrtllmBench:
    script(trtllm)
    (trtllm.folder / "hf").mkdir()
    (trtllm.folder / "hf" / "config.json").write_text(json.dumps(MODEL))
    (trtllm.folder / "hf" / "model.safetensors").write_bytes(b"hf weights")
    return trtllm


def script(bench: TrtllmBench, fail: str | None = None) -> None:
    (bench.folder / "convert_checkpoint.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from tests.standins import convert_checkpoint\nsys.exit(convert_checkpoint.main(sys.argv[1:], {fail!r}))\n"
    )


def left(bench: TrtllmBench) -> list[str]:
    return sorted(path.name for path in bench.folder.glob("*made*") if not path.name.endswith(".lock"))


def test_a_missing_checkpoint_is_converted_then_built(bench: TrtllmBench) -> None:
    built = bench.ensure(NAMED + "tp_size: 2\n")
    convert, build = built.commands
    assert convert.argv[:2] == (str(bench.python), str(bench.folder / "convert_checkpoint.py"))
    assert convert.argv[convert.argv.index("--tp_size") :][:2] == ("--tp_size", "2")
    assert "--tp_size" not in build.argv
    assert json.loads((bench.folder / "made" / "config.json").read_text())["dtype"] == "bfloat16"
    assert left(bench) == ["made"]
    assert len(list(built.path.glob("rank*.engine"))) == 2


def test_the_second_build_finds_the_checkpoint(bench: TrtllmBench) -> None:
    first = bench.ensure(NAMED)
    script(bench, "killed")
    again = bench.ensure(NAMED, force=True)
    assert (len(first.commands), len(again.commands)) == (2, 1)
    assert again.fingerprint == first.fingerprint


def test_without_a_place_the_checkpoint_is_kept_at_home_by_content_of_the_model(bench: TrtllmBench) -> None:
    bench.ensure(UNNAMED)
    (made,) = (bench.folder / "home" / "checkpoints").glob("tiny-*")
    assert (made / "rank0.safetensors").exists()
    assert len(bench.describe(UNNAMED).commands) == 1
    (bench.folder / "hf" / "model.safetensors").write_bytes(b"other weights")
    os.utime(bench.folder / "hf" / "model.safetensors", (1, 1))
    assert len(bench.ensure(UNNAMED).commands) == 2


def test_a_dry_run_shows_both_commands_and_converts_nothing(bench: TrtllmBench) -> None:
    told = bench.describe(NAMED + "tp_size: 2\npp_size: 2\n", trtllm_version="0.12.0")
    convert, build = told.commands
    assert str(bench.folder / "made") in convert.argv
    assert str(bench.folder / "made") in build.argv
    assert convert.argv[convert.argv.index("--pp_size") :][:2] == ("--pp_size", "2")
    assert left(bench) == []


@pytest.mark.parametrize(
    ("fail", "code", "says"),
    [
        ("killed", "killed", "was killed"),
        ("missing_rank", "conversion", "ended without rank1.safetensors"),
        ("other_mapping", "conversion", "made tp_size 1"),
        ("disk_full", "no_space", "no space is left"),
    ],
)
def test_a_failed_conversion_is_one_clear_error_and_leaves_nothing(
    fail: str, code: str, says: str, bench: TrtllmBench
) -> None:
    script(bench, fail)
    with pytest.raises(ToolkitError) as caught:
        bench.ensure(NAMED + "tp_size: 2\n")
    assert caught.value.code == code
    assert says in str(caught.value)
    assert left(bench) == []
    assert bench.published() == []


def test_a_conversion_that_hangs_is_ended(bench: TrtllmBench) -> None:
    script(bench, "hang")
    with pytest.raises(ToolkitError, match=r"convert_checkpoint\.py hung"):
        bench.ensure(NAMED, patience=IMPATIENT)
    assert left(bench) == []


def test_what_a_dead_conversion_left_is_swept(bench: TrtllmBench) -> None:
    (bench.folder / ".made.converting-1").mkdir()
    bench.ensure(NAMED)
    assert left(bench) == ["made"]


def test_a_folder_that_is_no_finished_checkpoint_is_left_alone(bench: TrtllmBench) -> None:
    (bench.folder / "made").mkdir()
    (bench.folder / "made" / "rank0.safetensors").write_bytes(b"half")
    with pytest.raises(ToolkitError, match="no finished checkpoint"):
        bench.ensure(NAMED)
    assert (bench.folder / "made" / "rank0.safetensors").read_bytes() == b"half"


def test_what_the_release_refuses_is_told_before_an_hour_of_conversion(bench: TrtllmBench) -> None:
    with pytest.raises(ToolkitError, match="has no option"):
        bench.ensure(NAMED + "options: {nothing: 1}\n")
    assert left(bench) == []


def test_neither_checkpoint_nor_a_way_to_one_is_told(trtllm: TrtllmBench) -> None:
    with pytest.raises(ToolkitError, match="there is no converted checkpoint"):
        trtllm.ensure("checkpoint: nowhere\n")


def test_the_checkpoint_goes_where_a_relative_path_of_the_recipe_means(bench: TrtllmBench) -> None:
    (bench.folder / "models").mkdir()
    bench.ensure(NAMED.replace("made", "models/tiny-trtllm"))
    assert (bench.folder / "models" / "tiny-trtllm" / "config.json").exists()


def test_a_conversion_sees_no_gpu(bench: TrtllmBench) -> None:
    assert bench.describe(NAMED).commands[0].env["CUDA_VISIBLE_DEVICES"] == ""


def test_the_stand_in_takes_only_what_such_scripts_take() -> None:
    with pytest.raises(SystemExit):
        convert_checkpoint.main(["--model_dir", "x", "--context_fmha", "disable"], None)
