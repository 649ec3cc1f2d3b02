from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.assemble import placing
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.errors import ManyFaultsError, ToolkitError


@pytest.fixture
def deployment(tmp_path: Path) -> LoadedDeployment:
    file = tmp_path / "services.yaml"
    service = "{{runtime: vllm, model: m, gpus: 1,\n    options: {{max-model-len: {}}}}}"
    file.write_text(
        f"version: 1\nname: demo\nservices:\n  one: {service.format(1)}\n  two: {service.format(2)}\n", encoding="utf-8"
    )
    return load.deployment(file)


def refusing(**faults: ToolkitError):
    def ask(name: str) -> str:
        if name in faults:
            raise faults[name]
        return name.upper()

    return ask


def test_answers_come_back_by_name(deployment):
    assert placing.of_services(deployment, refusing()) == {"one": "ONE", "two": "TWO"}


def test_faults_of_all_services_are_told_at_once_each_at_its_line(deployment):
    one = ManyFaultsError((
        ToolkitError("no such option", "services.one.options.max-model-len", "Remove it.", code="unknown_option"),
        ToolkitError("nothing says where"),
    ))  # fmt: skip
    two = ToolkitError("no GPU", "services.two.gpus", needed=1)
    with pytest.raises(ManyFaultsError) as refused:
        placing.of_services(deployment, refusing(one=one, two=two))
    file = deployment.file
    assert [(each.what, each.where) for each in refused.value.errors] == [
        ("no such option", f"{file}:5 services.one.options.max-model-len"),
        ("nothing says where", f"{file}:4 services.one.runtime"),
        ("no GPU", f"{file}:6 services.two.gpus"),
    ]
    assert refused.value.errors[0].hint == "Remove it."
    assert refused.value.errors[0].code == "unknown_option"
    assert refused.value.errors[2].details == {"needed": 1}


@pytest.mark.parametrize("where", ["/srv/recipe.yaml:3 options.x", "services.yaml:3 services.one.gpus", "GPU 3"])
def test_a_fault_that_has_its_place_keeps_it(deployment, where):
    assert placing.placed(deployment, ToolkitError("what", where)).where == where


def test_other_errors_are_not_taken_for_faults_of_a_person(deployment):
    def ask(name: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        placing.of_services(deployment, ask)
