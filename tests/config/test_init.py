from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.config import init, load
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.host.model import Core, Gpu, Host, MigDevice

GIB = 2**30


def host(gpus: int, memory_bytes: int | None = 80 * GIB, mig: tuple[MigDevice, ...] | None = None) -> Host:
    found = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H200", memory_bytes=memory_bytes, used_bytes=0, mig=mig)
        for i in range(gpus)
    )
    return Host(cores=(Core(cpus=(0, 1)),), cpus_allowed=(0, 1), gpus=found)


def first_deployment(tmp_path: Path, machine: Host) -> Deployment:
    file = tmp_path / "first.yaml"
    init.write(file, init.render(machine))
    return load.deployment(file).model


def test_without_a_gpu_nothing_asks_for_one(tmp_path: Path) -> None:
    services = first_deployment(tmp_path, host(0)).services
    assert [service.gpus.size for service in services.values()] == [0, 0]
    assert {service.runtime for service in services.values()} == {"torch", "flash"}


@pytest.mark.parametrize("memory_bytes", [80 * GIB, 4 * GIB, None])
def test_one_gpu_is_shared_and_not_overbooked(tmp_path: Path, memory_bytes: int | None) -> None:
    services = first_deployment(tmp_path, host(1, memory_bytes)).services.values()
    assert all(service.gpus.share and service.gpus.size == 1 for service in services)
    assert sum(service.gpu_memory or 0 for service in services) <= 0.8 * (memory_bytes or 0)


@pytest.mark.parametrize(("count", "tp_size"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4)])
def test_several_gpus_give_the_model_a_power_of_two_and_leave_one(tmp_path: Path, count: int, tp_size: int) -> None:
    services = first_deployment(tmp_path, host(count)).services
    assert services["llm"].tp_size == services["llm"].gpus.size == tp_size
    assert services["embed"].gpus.size == 1


def test_a_gpu_in_mig_mode_counts_as_its_slices(tmp_path: Path) -> None:
    slices = tuple(MigDevice(uuid=f"MIG-{i}", index=i, profile=None, memory_bytes=10 * GIB) for i in range(3))
    assert first_deployment(tmp_path, host(1, mig=slices)).services["llm"].gpus.size == 2
    assert first_deployment(tmp_path / "..", host(1, mig=())).services["llm"].gpus.size == 0


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("mine", encoding="utf-8")
    with pytest.raises(ToolkitError, match="exists already"):
        init.write(file, "theirs")
    assert [path.read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["mine"]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="cannot be written: No such file"):
        init.write(tmp_path / "gone" / "x.yaml", "")
