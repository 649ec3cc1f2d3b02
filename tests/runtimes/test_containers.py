from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runtimes.conftest import CPUS, GPU, flag
from tests.standins import docker
from toolkit.config.models import Environment
from toolkit.errors import ToolkitError
from toolkit.runtimes import containers
from toolkit.runtimes.base import Launch, Probes

IMAGE = "nvcr.io/nvidia/tritonserver:24.11-trtllm-python-py3"
TWO = replace(GPU, device_uuids=("GPU-1f2e", "GPU-77aa"))
ENV = {
    "PATH": "/here/bin:/usr/bin",
    "LD_LIBRARY_PATH": "/here/lib",
    "HOME": "/home/me",
    "USER": "me",
    "TMPDIR": "/tmp/mine",
    "CUDA_VISIBLE_DEVICES": "GPU-1f2e",
    "COEXIST_TOKEN": "secret",
}
LAUNCH = Launch(("/opt/venv/bin/tritonserver", "--http-port=8001"), ENV, Probes(None), notes=("said before",))


def box(tmp_path: Path, **changes: Any) -> containers.Box:
    image = changes.pop("image", {})
    for name in ("run", "cache", "engine"):
        (tmp_path / name).mkdir(exist_ok=True)
    known: dict[str, Any] = {
        "name": "coexist-node-llm",
        "image": Environment.model_validate({"image": IMAGE, **image}),
        "user": "1000:1000",
        "run_dir": tmp_path / "run",
        "cache_dir": tmp_path / "cache",
        "read_only": (tmp_path / "engine",),
        "environ": {"PATH": "/usr/bin", "HOME": "/home/me", "DOCKER_HOST": "unix:///run/d.sock", "AWS_SECRET": "x"},
    }
    return containers.Box(**{**known, **changes})


def parsed(launch: Launch) -> dict[str, list[str]]:
    """As the strict client reads it."""
    assert launch.argv[1] == "run"
    return docker.parse(list(launch.argv[2:]))


def test_the_strict_client_takes_the_command_and_the_server_gets_its_own_argv(tmp_path: Path) -> None:
    found = parsed(containers.contained(LAUNCH, box(tmp_path), TWO))
    assert found["image"] == [IMAGE]
    assert [*found["--entrypoint"], *found["argv"]] == list(LAUNCH.argv)
    assert {"--rm", "--init"} <= found.keys()
    assert found["--pull"] == ["never"]
    assert found["--user"] == ["1000:1000"]
    assert found["--security-opt"] == ["no-new-privileges"]
    assert found["--ulimit"] == ["memlock=-1", "stack=67108864"]
    assert found["--shm-size"] == [str(1 << 30)]
    assert found["--network"] == ["host"]


def test_several_gpus_are_one_field_of_csv(tmp_path: Path) -> None:
    launch = containers.contained(LAUNCH, box(tmp_path), TWO)
    assert flag(launch.argv, "--gpus") == '"device=GPU-1f2e,GPU-77aa"'
    assert parsed(launch)["devices"] == ["GPU-1f2e", "GPU-77aa"]


@pytest.mark.parametrize("value", ["device=GPU-1f2e,GPU-77aa", "GPU-1f2e", "'device=GPU-1f2e'"])
def test_the_strict_client_refuses_other_ways_to_name_gpus(value: str) -> None:
    with pytest.raises(docker.RefusedError):
        docker.gpus(value)


def test_without_gpus_none_is_given_even_where_the_image_asks_for_all(tmp_path: Path) -> None:
    launch = containers.contained(LAUNCH, box(tmp_path), CPUS)
    assert "--gpus" not in launch.argv
    assert launch.own_env["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_engine_pins_the_cores_and_restricts_memory_only_where_it_is_bound(tmp_path: Path) -> None:
    free = containers.contained(LAUNCH, box(tmp_path), CPUS)
    bound = containers.contained(LAUNCH, box(tmp_path, memory_nodes=(0, 1)), CPUS)
    assert flag(free.argv, "--cpuset-cpus") == "0-1,32-33"
    assert "--cpuset-mems" not in free.argv
    assert flag(bound.argv, "--cpuset-mems") == "0-1"


def test_files_keep_their_paths_and_are_read_only_but_for_the_caches(tmp_path: Path) -> None:
    extra = f"{tmp_path}:/data:ro"
    found = parsed(containers.contained(LAUNCH, box(tmp_path, image={"volumes": [extra]}), GPU))
    at = str(tmp_path)
    kept = [f"{at}/engine:{at}/engine:ro", f"{at}/run:{at}/run:ro", f"{at}/cache:{at}/cache", extra]
    assert found["-v"] == kept


def test_variables_go_by_file_and_what_is_of_this_machine_stays_here(tmp_path: Path) -> None:
    launch = containers.contained(LAUNCH, box(tmp_path), GPU)
    assert "secret" not in " ".join(launch.argv)
    (tmp_path / "read").write_text(launch.files[tmp_path / "run" / "container.env"])
    inside = docker.env_file(tmp_path / "read")
    assert inside == launch.own_env
    assert inside == {
        "HOME": str(tmp_path / "cache"),
        "USER": "me",
        "CUDA_VISIBLE_DEVICES": "GPU-1f2e",
        "COEXIST_TOKEN": "secret",
    }
    assert launch.env == {"PATH": "/usr/bin", "HOME": "/home/me", "DOCKER_HOST": "unix:///run/d.sock"}


def test_what_a_service_sets_itself_is_set_in_the_container(tmp_path: Path) -> None:
    own = {"LD_LIBRARY_PATH": "/opt/lib"}
    launch = containers.contained(replace(LAUNCH, env={**ENV, **own}), box(tmp_path, own_env=own), GPU)
    assert launch.own_env["LD_LIBRARY_PATH"] == "/opt/lib"


def test_a_variable_with_a_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="'KEY' has a line break"):
        containers.contained(replace(LAUNCH, env={"KEY": "a\nPATH=/evil"}), box(tmp_path), GPU)


def test_a_path_with_a_colon_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="colon"):
        containers.contained(LAUNCH, box(tmp_path, read_only=(Path("/a:b"),)), GPU)


def test_own_limits_replace_those_that_are_always_set(tmp_path: Path) -> None:
    image = {"ulimits": {"stack": 1024, "nofile": 65536}, "shm_size": "8GiB"}
    found = parsed(containers.contained(LAUNCH, box(tmp_path, image=image), GPU))
    assert found["--ulimit"] == ["memlock=-1", "stack=1024", "nofile=65536"]
    assert found["--shm-size"] == [str(8 << 30)]


def test_podman_names_devices_as_cdi_does_and_keeps_the_user(tmp_path: Path) -> None:
    launch = containers.contained(LAUNCH, box(tmp_path, image={"program": "podman"}), TWO)
    assert launch.argv[0] == "podman"
    assert [b for a, b in zip(launch.argv, launch.argv[1:], strict=False) if a == "--device"] == [
        "nvidia.com/gpu=GPU-1f2e",
        "nvidia.com/gpu=GPU-77aa",
    ]
    assert flag(launch.argv, "--userns") == "keep-id"
    assert "--gpus" not in launch.argv


def test_the_working_folder_and_the_notes_of_the_launch_are_kept(tmp_path: Path) -> None:
    launch = containers.contained(replace(LAUNCH, cwd=Path("/srv")), box(tmp_path), GPU)
    assert flag(launch.argv, "--workdir") == "/srv"
    assert launch.cwd is None
    assert launch.notes[0] == "said before"
    assert launch.container is not None
    assert launch.container.id_file == tmp_path / "run" / "container.id"


@pytest.mark.parametrize("key", ["program", "shm_size", "ulimits", "volumes"])
def test_what_is_for_images_is_refused_without_one(key: str) -> None:
    values = {"program": "docker", "shm_size": "1GiB", "ulimits": {}, "volumes": []}
    with pytest.raises(ValueError, match="for an environment with 'image' only"):
        Environment.model_validate({"python": "/opt/bin/python", key: values[key]})


@pytest.mark.parametrize("volume", ["relative:/there", "/here", "/here:there", "/here:/there:rox", "/a:/b:ro:rw"])
def test_a_volume_that_is_none_is_refused(volume: str) -> None:
    with pytest.raises(ValueError, match="no volume"):
        Environment.model_validate({"image": "x", "volumes": [volume]})
