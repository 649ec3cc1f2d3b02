from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import measure_host
import pytest

from toolkit.host.model import Core, Gpu, GpuLink, Holder, Host
from toolkit.units import GIB, MIB

SCRIPT = Path(measure_host.__file__)
UUIDS = [f"GPU-{n}bdddec5-0579-0e70-ffd4-e0c1be738760" for n in range(2)]
TOPO = "\n".join([
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
    "GPU0\t X \tNV18\t0-7\t0\t\tN/A",
    "GPU1\tNV18\t X \t8-15\t1\t\tN/A",
])  # fmt: skip
LIST = "\n".join(f"GPU {n}: NVIDIA H200 (UUID: {uuid})" for n, uuid in enumerate(UUIDS))
CSV = "\n".join([
    "index, uuid, name, memory.total [MiB], memory.used [MiB], pci.bus_id, compute_cap, compute_mode, driver_version",
    *(
        f"{n}, {uuid}, NVIDIA H200, 143771 MiB, 300 MiB, 00000000:0{n}:00.0, 9.0, Default, 580.95.05"
        for n, uuid in enumerate(UUIDS)
    ),
])  # fmt: skip
TEXTS = {"topo": TOPO, "list": LIST, "csv": CSV}


def gpu(index: int, **changes) -> Gpu:
    facts = {
        "index": index, "uuid": UUIDS[index], "name": "NVIDIA H200", "pci_bus_id": f"0000:0{index}:00.0",
        "compute_capability": "9.0", "memory_bytes": 143771 * MIB, "used_bytes": GIB + 300 * MIB,
        "holders": (Holder(pid=None, name="driver", used_bytes=GIB),), "numa_nodes": (index,),
        "cpus": tuple(range(8 * index, 8 * index + 8)), "compute_mode": "Default",
    }  # fmt: skip
    return Gpu(**{**facts, **changes})


def host(*gpus: Gpu, link: str | None = "NV18") -> Host:
    cores = tuple(Core(cpus=(cpu,)) for cpu in range(16))
    return Host(
        driver_version="580.95.05", gpus=gpus, links=(GpuLink(a=0, b=1, link=link),), cores=cores,
        cpus_allowed=tuple(range(16)),
    )  # fmt: skip


def disagree(found: Host, **texts: str) -> list[str]:
    readings = {kind: measure_host.reading(text) for kind, text in {**TEXTS, **texts}.items()}
    return [*measure_host.disagreements(found, readings)]


def test_sources_that_say_the_same_disagree_in_nothing():
    assert disagree(host(gpu(0), gpu(1))) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cpus": (0,)}, "CPUs near GPU 1: (0,) here, (8, 9, 10, 11, 12, 13, 14, 15) by nvidia-smi"),
        ({"numa_nodes": (0,)}, "NUMA nodes of GPU 1: (0,) here, (1,) by nvidia-smi"),
        ({"pci_bus_id": "0000:09:00.0"}, "PCI address of GPU 1: 0000:09:00.0 here, 0000:01:00.0 by nvidia-smi"),
        ({"memory_bytes": GIB}, "MiB of GPU 1: 1024 here, 143771 by nvidia-smi"),
        ({"used_bytes": 3 * GIB}, "MiB in use of GPU 1: 2048 here, 300 by nvidia-smi"),
    ],
)
def test_each_fact_that_differs_is_one_sentence(changes, told):
    assert disagree(host(gpu(0), gpu(1, **changes))) == [told]


def test_a_link_that_differs_is_told_and_an_unknown_one_is_not():
    assert disagree(host(gpu(0), gpu(1), link="SYS")) == ["link 0-1: SYS here, NV18 by nvidia-smi"]
    assert disagree(host(gpu(0), gpu(1), link=None)) == []


def test_another_uuid_is_told_by_both_texts_that_have_it():
    told = disagree(host(gpu(0), gpu(1, uuid="GPU-other")))
    assert [each.split(":")[0] for each in told] == ["UUID of GPU 1", "UUID of GPU 1"]


def test_a_text_that_cannot_be_read_is_told_with_the_reason():
    told = disagree(host(gpu(0), gpu(1)), topo="NVIDIA-SMI has failed because it couldn't communicate with the driver")
    assert len(told) == 1
    assert told[0].startswith("nvidia-smi topo -m could not be read: ")


def test_the_script_runs_anywhere_and_prints_one_document(tmp_path):
    file = tmp_path / "host.json"
    argv = [sys.executable, str(SCRIPT), "--runs", "1", "--json", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document == json.loads(file.read_text())
    assert document["host"]["cores"]
    assert done.stderr.startswith("probe: median")
