from __future__ import annotations

from types import SimpleNamespace

import pytest

from toolkit.host.nvml import Memory, MigFacts, NvLink, NvmlError, Process, PyNvml, bits


class RefusedError(Exception):
    pass


def refuse(*_):
    raise RefusedError("Not Supported")


def module(**answers):
    """nvidia-ml-py with these functions; every other one refuses."""
    constants = {
        "NVMLError": RefusedError,
        "nvmlMemory_v2": 2,
        "NVML_P2P_CAPS_INDEX_NVLINK": 2,
        "NVML_P2P_STATUS_OK": 0,
        "NVML_AFFINITY_SCOPE_NODE": 0,
        "NVML_NVLINK_MAX_LINKS": 3,
        "NVML_NVLINK_DEVICE_TYPE_GPU": 0,
        "NVML_NVLINK_DEVICE_TYPE_SWITCH": 2,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
    }

    class Module(SimpleNamespace):
        def __getattr__(self, name):
            return refuse

    return Module(**{**constants, **answers})


def device(**answers):
    return PyNvml(module(**answers)).device(0)


def test_a_driver_that_does_not_match_its_library_is_an_nvml_error():
    with pytest.raises(NvmlError, match="Not Supported"):
        PyNvml(module(nvmlInit=refuse))


def test_versions_are_text():
    library = PyNvml(module(nvmlSystemGetDriverVersion=lambda: b"580.95", nvmlSystemGetCudaDriverVersion=lambda: 12090))
    assert (library.driver_version(), library.cuda_version()) == ("580.95", "12.9")


def test_the_drivers_own_memory_is_told_apart_where_the_release_can():
    def memory(handle, version=None):
        if version is None:
            return SimpleNamespace(total=100, used=30)
        return SimpleNamespace(total=100, used=10, reserved=20)

    def old_memory(handle, version=None):
        return refuse() if version else memory(handle)

    assert device(nvmlDeviceGetMemoryInfo=memory).memory() == Memory(100, 10, 20)
    assert device(nvmlDeviceGetMemoryInfo=old_memory).memory() == Memory(100, 30, 0)


def test_a_process_with_two_kinds_of_context_is_one_process():
    entry = SimpleNamespace(pid=5, usedGpuMemory=7)
    found = device(
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [entry],
        nvmlDeviceGetGraphicsRunningProcesses=lambda handle: [entry, SimpleNamespace(pid=6, usedGpuMemory=None)],
    )
    assert found.processes() == (Process(5, 7), Process(6, None))


def test_mig_slices_are_asked_one_by_one():
    def slice_of(handle, index):
        return f"slice{index}" if index == 1 else refuse()

    found = device(
        nvmlDeviceGetMigMode=lambda handle: [1, 1],
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 3,
        nvmlDeviceGetMigDeviceHandleByIndex=slice_of,
        nvmlDeviceGetUUID=lambda handle: f"MIG-{handle}",
        nvmlDeviceGetName=lambda handle: "NVIDIA A100 MIG 1g.10gb",
        nvmlDeviceGetMemoryInfo=lambda handle, version=None: SimpleNamespace(total=9, used=1, reserved=0),
    )
    assert found.mig() == (MigFacts(1, "MIG-slice1", "1g.10gb", Memory(9, 1, 0), ()),)
    assert device(nvmlDeviceGetMigMode=lambda handle: [0, 0]).mig() is None


def test_only_active_links_are_links():
    found = device(
        nvmlDeviceGetNvLinkState=lambda handle, index: index != 1 or refuse(),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda handle, index: 2,
        nvmlDeviceGetNvLinkRemotePciInfo=lambda handle, index: SimpleNamespace(busId=f"b{index}"),
    )
    assert found.nvlinks() == (NvLink("switch", "b0"), NvLink("switch", "b2"))


def test_levels_and_modes_are_written_as_nvidia_smi_does():
    library = PyNvml(
        module(
            nvmlDeviceGetTopologyCommonAncestor=lambda a, b: 20,
            nvmlDeviceGetP2PStatus=lambda a, b, what: 0,
            nvmlDeviceGetComputeMode=lambda handle: 3,
        )
    )
    assert library.ancestor(0, 1) == "PXB"
    assert library.peers_over_nvlink(0, 1) is True
    assert library.device(0).compute_mode() == "Exclusive_Process"


def test_masks_are_read_lowest_bit_first():
    assert bits([0b101, 0, 1]) == (0, 2, 128)
