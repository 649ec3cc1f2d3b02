from __future__ import annotations

from toolkit.assemble import build_machine
from toolkit.host.model import ContainerLimits, Core, Gpu, Holder, Host, MigDevice
from toolkit.units import GIB


def host(*gpus: Gpu, limit: int | None = None) -> Host:
    return Host(gpus=gpus, cores=(Core(cpus=(0,)),), cpus_allowed=(0,), limits=ContainerLimits(memory_bytes=limit))


def gpu(*holders: Holder, mig: tuple[MigDevice, ...] | None = None) -> Gpu:
    return Gpu(
        index=0, uuid="GPU-aa", name="H100", compute_capability="9.0", memory_bytes=80 * GIB, used_bytes=0,
        holders=holders, mig=mig,
    )  # fmt: skip


def test_processes_hold_a_gpu_and_the_driver_does_not() -> None:
    driver = Holder(pid=None, name="driver", used_bytes=1)
    named, unknown = Holder(pid=7, name="python", used_bytes=1), Holder(pid=None, name=None, used_bytes=1)
    (free,) = build_machine.of(host(gpu(driver))).gpus
    (busy,) = build_machine.of(host(gpu(driver, named, unknown))).gpus
    assert free.holders == ()
    assert busy.holders == ("python (pid 7)", "a process of another container")


def test_slices_are_what_a_divided_gpu_offers() -> None:
    part = MigDevice(uuid="MIG-1", index=0, profile="3g.40gb", memory_bytes=40 * GIB)
    (only,) = build_machine.of(host(gpu(mig=(part,)))).gpus
    assert (only.uuid, only.name, only.memory_bytes) == ("MIG-1", "H100 3g.40gb", 40 * GIB)
    assert build_machine.of(host(gpu(mig=()))).gpus == ()


def test_the_tighter_of_container_and_machine_bounds_host_memory() -> None:
    assert build_machine.of(host(limit=8 * GIB), lambda: 64 * GIB).available_bytes == 8 * GIB
    assert build_machine.of(host(), lambda: 64 * GIB).available_bytes == 64 * GIB
