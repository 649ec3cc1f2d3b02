from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.containers import engine
from toolkit import workflow
from toolkit.assemble import boxes, paths
from toolkit.assemble.check import check_deployment
from toolkit.assemble.programs import check_programs
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.home import Home
from toolkit.host.model import Host
from toolkit.runtimes.base import Container, Launch, Probes

CLIENT = {"PATH": "/usr/bin"}
LAUNCH = Launch(("docker", "run"), CLIENT, Probes(None), container=Container("docker", Path("/run/id"), CLIENT))
NO_GPUS = Host(gpus=(), cores=(), cpus_allowed=(0,))


def deployment(tmp_path: Path, image: Mapping[str, Any], **more: Any) -> LoadedDeployment:
    web = {
        "runtime": "command",
        "argv": ["{python}", "serve.py"],
        "ready": {"path": "/"},
        "environment": "box",
        "port": 8123,
    }
    document = {"version": 1, "name": "boxed", "environments": {"box": image}, "services": {"web": web}, **more}
    file = tmp_path / "boxed.yaml"
    file.write_text(json.dumps(document))
    return load.deployment(file)


@pytest.mark.parametrize(
    ("fails", "code", "hint"),
    [("version", "container_engine", "docker version"), ("image", "no_image", "docker pull x:1")],
)
def test_the_engine_and_the_image_are_asked_for_with_the_clients_environment(
    tmp_path: Path, fails: str, code: str, hint: str
) -> None:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], env: Mapping[str, str]) -> str | None:
        assert env == CLIENT
        asked.append(argv)
        return "no such thing" if argv[1] == fails else None

    fault = boxes.fault(deployment(tmp_path, {"image": "x:1"}), "web", LAUNCH, run)
    assert fault is not None
    assert fault.code == code
    assert hint in str(fault)
    assert "no such thing" in fault.what
    assert "environments.box.image" in (fault.where or "")
    assert asked[0][:2] == ("docker", "version")


def test_an_engine_that_has_the_image_is_no_fault(tmp_path: Path) -> None:
    assert boxes.fault(deployment(tmp_path, {"image": "x:1"}), "web", LAUNCH, lambda *_: None) is None


def test_what_a_client_says_last_is_told_and_one_that_is_not_there_too() -> None:
    script = "import sys; print('Cannot connect', file=sys.stderr); sys.exit(1)"
    assert boxes.run_client((sys.executable, "-c", script), {}) == "Cannot connect"
    assert boxes.run_client((sys.executable, "-c", "raise SystemExit(3)"), {}) == "exit status 3"
    assert boxes.run_client((sys.executable, "-c", ""), {}) is None
    assert boxes.run_client(("/no/such/program",), {}) == "No such file or directory"


def test_the_plan_shows_the_command_and_what_the_server_in_the_container_gets(tmp_path: Path) -> None:
    deployment(tmp_path, {"image": "x:1", "python": "/opt/python"})
    (service,) = workflow.plan_document(tmp_path / "boxed.yaml", Home(tmp_path / "home"))["services"]
    assert service["argv"][:2] == ["docker", "run"]
    at = service["argv"].index("--entrypoint")
    assert service["argv"][at : at + 4] == ["--entrypoint", "/opt/python", "x:1", "serve.py"]
    assert service["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "PATH" not in service["env"], "the image has its own"
    assert any("runs in a container of x:1" in note for note in service["notes"])


def test_a_start_asks_the_engine_itself(tmp_path: Path) -> None:
    with engine("here:1") as docker:
        env = {"PATH": docker.path}
        launch = replace(LAUNCH, env=env, container=Container("docker", Path("/run/id"), env))
        check_programs(deployment(tmp_path, {"image": "here:1"}), {"web": launch})
        with pytest.raises(ManyFaultsError, match="the image 'other:1' is not here"):
            check_programs(deployment(tmp_path, {"image": "other:1"}), {"web": launch})
        docker.end()
        with pytest.raises(ManyFaultsError, match="docker does not answer: Cannot connect"):
            check_programs(deployment(tmp_path, {"image": "here:1"}), {"web": launch})


def test_a_machine_without_the_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(ManyFaultsError, match=r"environments\.box\.image: there is no program 'docker'"):
        check_programs(deployment(tmp_path, {"image": "x:1"}), {"web": LAUNCH})


def test_of_an_image_nothing_is_known_unless_the_deployment_says_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    report = check_deployment(deployment(tmp_path, {"image": "x:1"}), NO_GPUS, home)
    assert report.verdict == "unknown"
    assert "image-not-read" in {finding.id for finding in report.findings}
    versions = {"torch": "2.4.0", "Flash_Attn": "2.6.3", "cuda": "12.1"}
    report = check_deployment(deployment(tmp_path, {"image": "x:1", "versions": versions}), NO_GPUS, home)
    assert "image-not-read" not in {finding.id for finding in report.findings}
    assert report.environments["box"]["packages"]["flash-attn"] == "2.6.3"


def test_of_published_images_of_triton_the_versions_are_known(tmp_path: Path) -> None:
    image = {"image": "nvcr.io/nvidia/tritonserver:24.11-trtllm-python-py3"}
    report = check_deployment(deployment(tmp_path, image), NO_GPUS, Home(tmp_path / "home"))
    assert report.environments["box"]["packages"]["tensorrt-llm"] == "0.15.0"


def test_an_engine_is_not_built_in_an_image(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("{version: 1, name: r, builder: trtllm, checkpoint: x}")
    engines = {"llm": {"recipe": str(recipe), "environment": "box"}}
    with pytest.raises(ToolkitError, match="built in an environment of this machine"):
        paths.find(deployment(tmp_path, {"image": "x:1"}, engines=engines))
