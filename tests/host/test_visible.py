from __future__ import annotations

from toolkit.host.model import Gpu, MigDevice
from toolkit.host.visible import narrow


def gpu(index, uuid, name="NVIDIA H200", mig=None):
    return Gpu(index=index, uuid=uuid, name=name, memory_bytes=1, used_bytes=0, mig=mig)


TWO = (gpu(0, "GPU-aa11"), gpu(1, "GPU-ab22"))


def uuids(visible, gpus=TWO, order=None):
    found, notes = narrow(gpus, visible, order)
    return [one.uuid for one in found], notes


def test_without_a_list_every_gpu_is_ours():
    assert uuids(None) == (["GPU-aa11", "GPU-ab22"], [])


def test_indices_uuids_and_prefixes_name_gpus():
    assert uuids("1")[0] == ["GPU-ab22"]
    assert uuids("GPU-aa11")[0] == ["GPU-aa11"]
    assert uuids("GPU-ab")[0] == ["GPU-ab22"]
    assert uuids("1,0") == (["GPU-aa11", "GPU-ab22"], [])


def test_an_empty_list_leaves_none():
    assert uuids("")[0] == []
    assert uuids("-1")[0] == []


def test_an_unknown_entry_is_said_and_ends_the_list():
    found, notes = uuids("0,7,1")
    assert found == ["GPU-aa11"]
    assert "'7'" in notes[0]
    assert "(1)" in notes[0]


def test_a_prefix_of_two_names_none():
    assert uuids("GPU-a")[0] == []


def test_an_index_among_unlike_gpus_is_not_guessed():
    mixed = (gpu(0, "GPU-aa", "NVIDIA T4"), gpu(1, "GPU-bb"))
    found, notes = uuids("0", mixed)
    assert found == []
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in notes[0]
    assert uuids("0", mixed, "PCI_BUS_ID")[0] == ["GPU-aa"]
    assert uuids("GPU-bb", mixed)[0] == ["GPU-bb"]


def test_a_slice_leaves_its_gpu_with_that_slice_only():
    slices = tuple(MigDevice(uuid=f"MIG-{n}", index=n, profile="1g.10gb", memory_bytes=1) for n in (1, 2, 3))
    found, _ = narrow((gpu(0, "GPU-aa", mig=slices),), "MIG-1,MIG-3", None)
    assert [device.uuid for device in found[0].mig] == ["MIG-1", "MIG-3"]
