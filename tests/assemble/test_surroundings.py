from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.assemble import surroundings


def safetensors(path: Path, data: bytes = b"\0" * 8) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    return path


def test_a_whole_model_has_no_faults(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    found = surroundings.model_folder(tmp_path)
    assert found.faults == ()
    assert found.weights_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_a_shard_of_the_index_that_is_missing_is_named(tmp_path: Path) -> None:
    safetensors(tmp_path / "a.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert surroundings.model_folder(tmp_path).faults == ("b.safetensors is missing",)


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\xff" * 64, (5).to_bytes(8, "little") + b"{nope"])
def test_a_damaged_header_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    (fault,) = surroundings.model_folder(tmp_path).faults
    assert "header" in fault


def test_a_file_that_ends_before_its_tensors_is_told(tmp_path: Path) -> None:
    safetensors(tmp_path / "model.safetensors", data=b"\0")
    assert "shorter" in surroundings.model_folder(tmp_path).faults[0]


def test_a_download_that_did_not_finish_is_found_beside_the_blobs_of_the_cache(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b/snapshots/123", tmp_path / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc.incomplete").touch()
    (snapshot / "model.safetensors").symlink_to(blobs / "gone")
    faults = surroundings.model_folder(snapshot).faults
    assert any("abc.incomplete" in fault for fault in faults)
    assert any("link to nothing" in fault for fault in faults)


@given(st.binary(max_size=64))
def test_no_bytes_are_too_strange_for_a_header(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    path.write_bytes(content)
    surroundings.model_folder(path.parent)


def test_an_engine_folder_tells_ranks_and_what_its_manifest_recorded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"version": "0.12.0"}))
    (tmp_path / "rank0.engine").write_bytes(b"12345")
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"rank0.engine": {"size": 9}}}))
    found = surroundings.engine_folder("llm", tmp_path)
    assert found.config == {"version": "0.12.0"}
    assert found.ranks == {"rank0.engine": 5}
    assert found.recorded == {"rank0.engine": 9}


def test_an_engine_folder_without_a_config_says_why(tmp_path: Path) -> None:
    assert surroundings.engine_folder("llm", tmp_path).config_error == "is missing"
    (tmp_path / "config.json").write_text("{")
    assert surroundings.engine_folder("llm", tmp_path).config_error == "cannot be read"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/usr/lib/x86_64-linux-gnu/libmpi.so.40.30.4", "openmpi"),
        ("/conda/lib/libmpi.so.12", "mpich"),
        ("/conda/lib/libmpich.so.12", "mpich"),
        ("/opt/libmpi.so.99", "unknown"),
    ],
)
def test_whose_mpi_a_library_is(path: str, kind: str) -> None:
    assert surroundings.kind_of_mpi(path) == kind


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda rw
40 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
41 40 8:2 / /home/me/.triton rw - xfs /dev/sdb rw
"""


def test_a_cache_is_on_the_file_system_of_its_deepest_mount() -> None:
    environ = {"HOME": "/home/me", "TRITON_CACHE_DIR": "/home/me/.triton/cache", "VLLM_CACHE_ROOT": "/home/me/v"}
    found = {cache.variable: cache for cache in surroundings.caches(environ, MOUNTS)}
    assert (found["TRITON_CACHE_DIR"].filesystem, found["TRITON_CACHE_DIR"].network) == ("xfs", False)
    assert (found["VLLM_CACHE_ROOT"].filesystem, found["VLLM_CACHE_ROOT"].network) == ("nfs4", True)


def test_a_lock_that_a_process_holds_open_is_held_and_one_from_before_the_boot_is_told(tmp_path: Path) -> None:
    held, left = tmp_path / "cache/a/lock", tmp_path / "cache/b/x.lock"
    for path in (held, left):
        path.parent.mkdir(parents=True)
        path.touch()
    os.utime(left, (100.0, 100.0))
    proc = tmp_path / "proc"
    (proc / "7/fd").mkdir(parents=True)
    (proc / "stat").write_text("cpu 1\nbtime 1000\n")
    (proc / "7/fd/3").symlink_to(held)
    os.utime(held, (2000.0, 2000.0))
    found = {lock.path: lock for lock in surroundings.locks([tmp_path / "cache"], proc, now_s=2500.0)}
    assert (found[held].held, found[held].before_boot, found[held].age_s) == (True, False, 500.0)
    assert (found[left].held, found[left].before_boot) == (False, True)


TRITON = """
name: "tensorrt_llm"
backend: "tensorrtllm"
# instance_group [ { gpus: [ 7 ] } ]
instance_group [
  {
    count: 1
    kind : KIND_GPU
    gpus: [ 1 ]
  }
]
parameters: { key: "gpu_device_ids" value: { string_value: "1" } }
"""


def test_a_triton_model_is_read_as_far_as_rules_ask(tmp_path: Path) -> None:
    for name, text in (("llm", TRITON), ("ensemble", 'platform: "ensemble"\nmodel_warmup [ { name: "x" } ]\n')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    ensemble, model = surroundings.triton_models(tmp_path)
    assert (model.backend, model.instance_gpus, model.gpu_device_ids) == ("tensorrtllm", True, True)
    assert (ensemble.platform, ensemble.warmup) == ("ensemble", True)


def test_only_variables_that_rules_ask_about_are_kept() -> None:
    environ = {"SLURM_JOB_ID": "7", "HF_TOKEN": "secret", "CUDA_MPS_PIPE_DIRECTORY": "/mps", "PATH": "/bin"}
    assert set(surroundings.variables(environ)) == {"SLURM_JOB_ID", "CUDA_MPS_PIPE_DIRECTORY"}


def test_a_pipe_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    assert surroundings.mps({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "gone")}, None).exists is False
    assert surroundings.mps({}, None).pipe_directory is None


@pytest.mark.parametrize(
    "header",
    [
        "[]", "1", '{"a": 1}', '{"a": {}}', '{"a": {"data_offsets": null}}', '{"a": {"data_offsets": [1]}}',
        '{"a": {"data_offsets": [0, "x"]}}', '{"a": {"data_offsets": [0, 1e400]}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_header_of_another_form_is_damaged(tmp_path: Path, header: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    assert surroundings.model_folder(tmp_path).faults == ("model.safetensors has a damaged header",)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json", "model.safetensors.index.json"):
        os.mkfifo(tmp_path / name)
    faults = surroundings.model_folder(tmp_path).faults
    assert faults == ("model.safetensors.index.json cannot be read", "model.safetensors is no file")
    assert surroundings.engine_folder("e", tmp_path).config_error == "cannot be read"


def test_a_shard_whose_name_can_be_no_name_is_missing(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x\0y"}}))
    assert surroundings.model_folder(tmp_path).faults == ("x\0y is missing",)


@pytest.mark.parametrize("row", [1, None, "size", {"size": "8"}, [8]])
def test_a_manifest_of_another_form_records_nothing(tmp_path: Path, row: object) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {"rank0.engine": row}}))
    assert surroundings.engine_folder("e", tmp_path).recorded == {}
