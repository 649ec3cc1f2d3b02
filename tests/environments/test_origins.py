from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.environments import origins
from toolkit.environments.model import Distribution
from toolkit.environments.origins import Origin


def package(name: str = "flash-attn", version: str = "2.7.4", **more: object) -> Distribution:
    return Distribution(name, version, Path("/x"), Path("/nowhere"), **more)  # type: ignore[arg-type]


def test_an_exact_pin_of_torch_is_what_a_package_was_built_for() -> None:
    found = origins.of(package(requires=("torch (==2.9.1)", "numpy==1.26")))
    assert found == (Origin("requires", "torch (==2.9.1)", torch="2.9.1"),)


@pytest.mark.parametrize(
    "requires", ["torch", "torch>=2.4", "torch==2.4.*", 'torch==2.4; extra == "x"', "torchvision==0.24", "torch ==!"]
)
def test_ranges_and_conditions_tell_nothing(requires: str) -> None:
    assert origins.of(package(requires=(requires,))) == ()


@pytest.mark.parametrize(
    ("name", "torch", "cuda", "abi"),
    [
        ("flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp310-cp310-linux_x86_64.whl", "2.6", 12, "old"),
        ("flash_attn-2.8.3+cu12torch2.9cxx11abiTRUE-cp312-cp312-linux_x86_64.whl", "2.9", 12, "new"),
        ("torch_scatter-2.1.2+pt210cu128-cp311.whl", "2.10", 12, None),
        ("vllm-0.21.0+cu129-cp38-abi3-manylinux1_x86_64.whl", None, 12, None),
        ("vllm-0.24.0+cu130-cp38-abi3-manylinux1_x86_64.whl", None, 13, None),
    ],
)
def test_the_name_of_a_wheel_tells_what_it_was_built_for(
    name: str, torch: str | None, cuda: int | None, abi: str | None
) -> None:
    (found,) = origins.of(package(source_url=f"https://files.example/{name}"))
    assert (found.torch, found.cuda, found.cxx11_abi) == (torch, cuda, abi)
    assert found.source == "url"


def test_a_local_version_tells_too() -> None:
    (found,) = origins.of(package(version="0.6.3+cu124"))
    assert (found.source, found.cuda, found.torch) == ("version", 12, None)
    assert origins.of(package(version="2.13.0+cpu")) == ()


@pytest.mark.parametrize(
    ("record", "torch", "cuda"),
    [
        ({"version": {"cuda": 1206, "torch": "2.6.0+cu126"}}, "2.6.0+cu126", 12),
        ({"version": 3}, None, None),
        ([], None, None),
    ],
)
def test_the_build_record_of_xformers_is_read(
    tmp_path: Path, record: object, torch: str | None, cuda: int | None
) -> None:
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers/cpp_lib.json").write_text(json.dumps(record))
    found = origins.of(Distribution("xformers", "0.0.29", tmp_path, tmp_path))
    assert [(o.torch, o.cuda) for o in found] == ([(torch, cuda)] if torch else [])


@pytest.mark.parametrize(
    ("built_for", "installed", "age"),
    [
        ("2.14.0", "2.13.0+cpu", "newer"),
        ("2.9.1", "2.13.0", "older"),
        ("2.9", "2.10.0", "older"),
        ("2.9", "2.9.1", None),
        ("2.9.1", "2.9.1+cu128", None),
        ("nonsense", "2.9.1", None),
        ("2.9", None, None),
    ],
)
def test_releases_are_compared_as_far_as_both_are_spelled_out(
    built_for: str, installed: str | None, age: str | None
) -> None:
    assert origins.age(built_for, installed) == age
