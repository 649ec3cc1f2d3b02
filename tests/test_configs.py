"""Deployments to start from: every file in ``configs/`` has a plan on the recorded host that its head names."""

from __future__ import annotations

import itertools
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from toolkit import environments, workflow
from toolkit.assemble import first
from toolkit.config import init, load
from toolkit.config.models import Deployment, Service
from toolkit.errors import ManyFaultsError
from toolkit.home import Home
from toolkit.host import probe, record
from toolkit.host.model import Host
from toolkit.units import parse_cpu_list

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "configs").glob("*.yaml"))
NAMES = [file.stem for file in FILES]


def file_of(name: str) -> Path:
    return ROOT / "configs" / f"{name}.yaml"


def host_file(name: str) -> Path:
    """The record that the file's head says to try it on."""
    text = file_of(name).read_text(encoding="utf-8")
    found = re.search(rf"#   coexist plan configs/{name}\.yaml --host (configs/hosts/\S+\.json)", text)
    assert found, f"{name}: its head says on which of configs/hosts/ it can be planned"
    return ROOT / found[1]


@cache
def planned(name: str) -> dict[str, Any]:
    return workflow.plan_document(file_of(name), Home(Path("/nowhere")), host_file(name))


@cache
def deployment(name: str) -> Deployment:
    return load.deployment(file_of(name)).model


@cache
def host(name: str) -> Host:
    return record.load(host_file(name))


def services(name: str) -> list[tuple[Service, dict[str, Any]]]:
    return [(deployment(name).services[each["name"]], each) for each in planned(name)["services"]]


def test_there_is_a_deployment_for_each_layout_that_people_ask_for() -> None:
    programs = {frozenset(each.runtime for each in deployment(name).services.values()) for name in NAMES}
    assert {frozenset({"trtllm", "flash"}), frozenset({"trtllm", "vllm"}), frozenset({"triton", "flash"})} <= programs
    assert any(each.tp_size == 4 for each in deployment("dgx-8-gpus").services.values())
    assert all(each.image for each in deployment("containers").environments.values())


@pytest.mark.parametrize("name", NAMES)
def test_its_plan_has_every_service_with_its_command(name: str) -> None:
    found = planned(name)
    assert {each["name"] for each in found["services"]} == set(deployment(name).services)
    assert all(each["argv"] and each["env"] for each in found["services"])
    assert len({each["port"] for each in found["services"]}) == len(found["services"])


@pytest.mark.parametrize("name", NAMES)
def test_each_service_has_the_gpus_that_the_file_asks_for(name: str) -> None:
    for asked, given in services(name):
        assert len(given["gpus"]) == asked.gpus.size
        for wanted in asked.gpus.devices:
            assert [each for each in given["gpus"] if each["index"] == wanted or each["uuid"].startswith(str(wanted))]


@pytest.mark.parametrize("name", NAMES)
def test_only_who_says_so_shares_a_gpu_and_starts_after_its_neighbour(name: str) -> None:
    for (one, given), (other, beside) in itertools.combinations(services(name), 2):
        if {gpu["uuid"] for gpu in given["gpus"]} & {gpu["uuid"] for gpu in beside["gpus"]}:
            assert one.gpus.share
            assert other.gpus.share
            assert given["wave"] != beside["wave"]


@pytest.mark.parametrize("name", NAMES)
def test_a_server_sees_its_own_gpus_alone(name: str) -> None:
    for _, given in services(name):
        own = {str(gpu[key]) for gpu in given["gpus"] for key in ("uuid", "index")}
        visible = given["env"].get("CUDA_VISIBLE_DEVICES", "")
        assert {each for each in visible.split(",") if each} <= own
        others = {gpu.uuid for gpu in host(name).gpus} - own
        assert not [word for word in given["argv"] for uuid in others if uuid in word]


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_given_once(name: str) -> None:
    for line in planned(name)["ledger"]:
        assert line["free_mib"] >= 0
        assert line["total_mib"] == line["free_mib"] + sum(each["mib"] for each in line["reserved"])
    for asked, given in services(name):
        assert {gpu["budget_mib"] << 20 for gpu in given["gpus"]} <= {asked.gpu_memory}


@pytest.mark.parametrize("name", NAMES)
def test_cores_are_given_once_and_no_server_has_more_threads_than_cores(name: str) -> None:
    given = {each["name"]: set(parse_cpu_list(each["cpus"])) for each in planned(name)["services"]}
    assert not [pair for pair in itertools.combinations(given.values(), 2) if set.intersection(*pair)]
    assert set().union(*given.values()) <= set(host(name).cpus_allowed)
    for asked, each in services(name):
        assert asked.cpus in ("auto", len(given[each["name"]]))
        assert int(each["env"].get("OMP_NUM_THREADS", "1")) <= len(given[each["name"]])


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_on_a_recorded_host_looks_at_nothing_of_this_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: object, **__: object) -> None:
        raise AssertionError("this machine was looked at")

    monkeypatch.setattr(environments, "read", looked)
    monkeypatch.setattr(probe, "probe", looked)
    assert workflow.plan_document(file_of(name), Home(Path("/nowhere")), host_file(name)) == planned(name)


def test_the_groups_of_eight_gpus_lie_within_a_socket() -> None:
    nodes = {each["name"]: each["numa_nodes"] for each in planned("dgx-8-gpus")["services"]}
    assert nodes == {"llm-a": [0], "embed": [0], "llm-b": [1], "embed-b": [1]}


def other_release(tmp_path: Path, name: str, *changes: tuple[str, str]) -> Path:
    """A copy of one of the deployments, beside recipes as in the repository."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "engines").symlink_to(ROOT / "engines")
    text = file_of(name).read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    written = tmp_path / "configs" / f"{name}.yaml"
    written.write_text(text, encoding="utf-8")
    return written


@pytest.mark.parametrize(
    ("release", "before_the_engine"), [("0.17.0", []), ("0.20.0", ["serve"]), ("1.1.0", ["serve"])]
)
def test_versions_that_are_declared_decide_over_the_command(
    tmp_path: Path, release: str, before_the_engine: list[str]
) -> None:
    file = other_release(tmp_path, "two-gpus", ("tensorrt-llm: 0.20.0", f"tensorrt-llm: {release}"))
    found = workflow.plan_document(file, Home(tmp_path), host_file("two-gpus"))
    llm = next(each for each in found["services"] if each["name"] == "llm")
    assert llm["argv"][1 : llm["argv"].index("<engine llm>")] == before_the_engine
    assert ("--backend" in llm["argv"]) == (release == "1.1.0")


def test_an_option_that_the_declared_release_lacks_is_told_with_its_line(tmp_path: Path) -> None:
    change = ("max_batch_size: 64\n      max_num", "max_batch: 64\n      max_num")
    file = other_release(tmp_path, "pytorch-mode", change)
    line = file.read_text(encoding="utf-8").splitlines().index("      max_batch: 64") + 1
    with pytest.raises(ManyFaultsError, match=r"1\.3\.0rc3 has no option 'max_batch'") as refused:
        workflow.plan_document(file, Home(tmp_path), host_file("pytorch-mode"))
    assert refused.value.errors[0].where == f"{file}:{line} services.llm.options.max_batch"


def test_a_recipe_that_is_elsewhere_is_no_hindrance_for_a_plan_of_a_recorded_host(tmp_path: Path) -> None:
    file = other_release(tmp_path, "two-gpus", ("engines/llama-3.1-8b.yaml", "/srv/engines/llm.yaml"))
    llm, _ = workflow.plan_document(file, Home(tmp_path), host_file("two-gpus"))["services"]
    assert "--tokenizer" not in llm["argv"]
    assert [note for note in llm["notes"] if note.startswith("its recipe is not here")]


def test_faults_of_a_recipe_are_told_on_a_recorded_host_too(tmp_path: Path) -> None:
    file = other_release(tmp_path, "two-gpus", ("engines/llama-3.1-8b.yaml", "wrong.yaml"))
    (tmp_path / "wrong.yaml").write_text("version: 1\nname: wrong\nbuilder: trtllm\nfmah: enable\n", encoding="utf-8")
    with pytest.raises(ManyFaultsError, match="fmah"):
        workflow.plan_document(file, Home(tmp_path), host_file("two-gpus"))


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_lists_it_with_its_host(name: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in readme if f"configs/{name}.yaml)" in line]
    assert [row for row in rows if host_file(name).stem in row]


@pytest.mark.parametrize("record_file", sorted((ROOT / "configs" / "hosts").glob("*.json")), ids=lambda file: file.stem)
def test_a_first_deployment_for_each_recorded_host_has_a_plan_there(tmp_path: Path, record_file: Path) -> None:
    file = tmp_path / "first.yaml"
    init.write(file, init.render(record.load(record_file), partial(first.sample, file)))
    found = workflow.plan_document(file, Home(tmp_path), record_file)
    assert [each["name"] for each in found["services"]] == ["llm", "embed"]
