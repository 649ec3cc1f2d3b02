from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.build.test_trtllm_readback import engine
from tests.build.trtllm_bench import TrtllmBench
from toolkit.build.trtllm_adopt import Surroundings, adopt, judge
from toolkit.config.models import Limits, Recipe
from toolkit.errors import ToolkitError
from toolkit.store import Store

FUSED = {"context_fmha": True, "use_paged_context_fmha": False}


def recipe(**keys: Any) -> Recipe:
    limits = Limits(max_batch_size=8, max_input_len=512, max_seq_len=1024, max_num_tokens=4096)
    return Recipe(**{"version": 1, "name": "tiny", "builder": "trtllm", "limits": limits, **keys})


def ids(folder: Path, around: Surroundings, known: dict[str, Any] | None = None, **build: Any) -> dict[str, str]:
    found = engine(folder, **{"plugins": FUSED, **build})
    return {finding.id: finding.severity for finding in judge(found, known or {}, around)}


def test_an_engine_that_fits_has_nothing_against_it(tmp_path: Path) -> None:
    around = Surroundings("0.21.0", "10.9.0.34", ("9.0",), 2, recipe())
    assert ids(tmp_path, around, {"tensorrt": "10.9.0.34", "compute_capability": "9.0"}) == {}


@pytest.mark.parametrize(
    ("around", "known", "expected"),
    [
        (Surroundings("0.20.0"), {}, "release_differs"),
        (Surroundings("1.3.0"), {}, "no_engine_mode"),
        (Surroundings(tensorrt="10.9.0.34"), {"tensorrt": "10.9.0.33"}, "tensorrt_differs"),
        (Surroundings(capabilities=("8.9",)), {"compute_capability": "9.0"}, "capability_differs"),
        (Surroundings(gpus=4), {}, "world_size_differs"),
        (Surroundings(recipe=recipe(tp_size=4)), {}, "mapping_differs"),
        (Surroundings(recipe=recipe(fmha="disable")), {}, "fmha_differs"),
        (Surroundings(recipe=recipe(kv_cache={"reuse": True})), {}, "kv_reuse_impossible"),
        (Surroundings(settings={"llm": {"enable_chunked_prefill": True}}), {}, "needs_paged_context"),
        (Surroundings(recipe=recipe(limits=Limits(max_batch_size=16))), {}, "limit_low"),
    ],
)
def test_each_mismatch_is_told(around: Surroundings, known: dict[str, Any], expected: str, tmp_path: Path) -> None:
    found = ids(tmp_path, around, known)
    assert found[expected] == "error"


def test_what_is_unknown_is_a_note_and_never_guessed(tmp_path: Path) -> None:
    assert ids(tmp_path, Surroundings(capabilities=("9.0",))) == {"capability_unknown": "note"}


@pytest.mark.parametrize(("size", "told"), [(48, {"block_size": "error"}), (64, {})])
def test_blocks_that_cannot_be_counted_keep_an_engine_from_being_served(
    size: int, told: dict[str, str], tmp_path: Path
) -> None:
    found = ids(tmp_path, Surroundings(), {"compute_capability": "9.0"}, plugins={**FUSED, "tokens_per_block": size})
    assert found == told


def test_gpus_that_differ_are_a_warning(tmp_path: Path) -> None:
    found = ids(tmp_path, Surroundings(capabilities=("9.0", "8.9")), {"compute_capability": "9.0"})
    assert found == {"capability_mixed": "warning"}


def test_missing_ranks_are_an_error_and_extra_ones_a_warning(tmp_path: Path) -> None:
    assert ids(tmp_path, Surroundings(), ranks=1)["ranks_missing"] == "error"
    assert ids(tmp_path, Surroundings(), ranks=3)["ranks_extra"] == "warning"


def test_a_build_of_another_local_version_is_the_same_release(tmp_path: Path) -> None:
    assert "release_differs" not in ids(tmp_path, Surroundings("0.21.0+ngcpytorch"))


def test_an_engine_somebody_built_is_copied_into_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    engine(folder, plugins=FUSED)
    store = Store(tmp_path / "home")
    entry, findings = adopt(folder, store, Surroundings("0.21.0"))
    assert (entry.name, entry.reused) == ("theirs", False)
    assert store.verify(entry) == ()
    assert {finding.severity for finding in findings} == {"note"}
    assert entry.build["engine"]["release"] == "0.21.0"
    assert entry.build["fmha"]["built"] == "enable"
    again, _ = adopt(folder, store, Surroundings())
    assert (again.reused, again.path) == (True, entry.path)


def test_what_cannot_be_served_is_not_adopted(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    engine(folder, ranks=1)
    store = Store(tmp_path / "home")
    with pytest.raises(ToolkitError, match=r"rank1\.engine") as caught:
        adopt(folder, store, Surroundings("0.20.0"))
    assert {row["id"] for row in caught.value.details["findings"]} >= {"ranks_missing", "release_differs"}
    assert store.entries() == ()


def test_an_engine_that_coexist_built_elsewhere_keeps_its_manifest(trtllm: TrtllmBench) -> None:
    built = trtllm.ensure("checkpoint: ckpt\nfmha: disable\n")
    copy = trtllm.folder / "copy"
    shutil.copytree(built.path, copy)
    store = Store(trtllm.folder / "other")
    entry, _ = adopt(copy, store, Surroundings("0.21.0", "10.9.0.34"))
    assert entry.fingerprint == built.fingerprint
    with pytest.raises(ToolkitError, match=r"TensorRT 10\.9\.0\.34 built it"):
        adopt(copy, Store(trtllm.folder / "third"), Surroundings("0.21.0", "10.9.0.35"))


def test_an_adopted_unfused_engine_has_its_guards(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    engine(folder, plugins={"context_fmha": False})
    entry, _ = adopt(folder, Store(tmp_path / "home"), Surroundings())
    assert {guard["id"] for guard in entry.build["guards"]} >= {"kv_cache_reuse_off", "max_input_len_bounded"}


def test_a_folder_that_is_no_engine_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="the file is missing"):
        adopt(tmp_path, Store(tmp_path / "home"), Surroundings())
