from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.assemble.cache_key import cache_key
from toolkit.config.models import Environment
from toolkit.host.model import Core, Gpu, Host

H200 = Gpu(index=0, uuid="GPU-a", name="NVIDIA H200", compute_capability="9.0", memory_bytes=1, used_bytes=0)
HOST = Host(driver_version="580.1", cores=(Core(cpus=(0,)),), cpus_allowed=(0,), gpus=(H200,))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    for name in ("torch-2.11.0", "click-8.1"):
        (packages / f"{name}.dist-info").mkdir()
    (tmp_path / "venv/pyvenv.cfg").write_text("version = 3.11.2\nhome = /usr/bin\n")
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python").write_text("")
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : fpu avx2\n")
    return tmp_path / "venv/bin/python"


def key(
    python: Path, host: Host = HOST, uuids: tuple[str, ...] = ("GPU-a",), environment: Environment | None = None
) -> str:
    return cache_key(python, environment, host, uuids, python.parents[2] / "cpuinfo")


def installed(python: Path, old: str, new: str) -> None:
    packages = python.parents[1] / "lib/python3.11/site-packages"
    (packages / f"{old}.dist-info").rename(packages / f"{new}.dist-info")


def test_it_is_the_same_for_the_same_environment(python: Path) -> None:
    assert key(python) == key(python)
    assert len(key(python)) == 16


def test_another_release_of_what_compiles_changes_it_and_of_others_does_not(python: Path) -> None:
    before = key(python)
    installed(python, "click-8.1", "click-8.2")
    assert key(python) == before
    installed(python, "torch-2.11.0", "torch-2.12.0")
    assert key(python) != before


def test_another_driver_or_gpu_model_changes_it_for_services_with_gpus(python: Path) -> None:
    driver = HOST.model_copy(update={"driver_version": "590.1"})
    other = HOST.model_copy(update={"gpus": (H200.model_copy(update={"name": "NVIDIA B200"}),)})
    again = HOST.model_copy(update={"gpus": (H200.model_copy(update={"index": 3, "used_bytes": 5}),)})
    assert len({key(python), key(python, driver), key(python, other)}) == 3
    assert key(python, again) == key(python)
    assert key(python, driver, ()) == key(python, HOST, ())


def test_other_instruction_sets_change_it(python: Path) -> None:
    before = key(python)
    (python.parents[2] / "cpuinfo").write_text("processor : 0\nflags : fpu avx2 avx512f\n")
    assert key(python) != before


def test_of_an_image_its_name_counts_and_nothing_of_this_machines_packages(python: Path) -> None:
    one, other = (Environment(image=f"org/server:{tag}") for tag in ("1", "2"))
    before = key(python, environment=one)
    installed(python, "torch-2.11.0", "torch-2.12.0")
    assert key(python, environment=one) == before != key(python, environment=other)


def test_of_a_recorded_host_nothing_here_is_looked_at(python: Path) -> None:
    recorded = HOST.model_copy(update={"recorded": True})
    before = key(python, recorded)
    installed(python, "torch-2.11.0", "torch-2.12.0")
    (python.parents[2] / "cpuinfo").unlink()
    assert key(python, recorded) == before
