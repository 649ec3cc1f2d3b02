from __future__ import annotations

import subprocess
import sys

import pytest

from tests.host.machines import FakeGpu, FakeNvml, mount_v2, write
from toolkit.host.model import UNLIMITED, Holder
from toolkit.host.nvml import Memory, MigFacts, NvLink, NvmlError, Process
from toolkit.host.probe import ASSUMED_CONTEXT_BYTES, probe
from toolkit.units import GIB, MIB

SWITCH = NvLink("switch", "00000000:C0:00.0")


@pytest.fixture
def look(machine):
    """Probes the fake machine with these GPUs; ``topo``: what nvidia-smi prints."""

    def look(*gpus, topo=None, environ=None, nvml=None, **kwargs):
        library = nvml or FakeNvml(list(gpus))
        return probe(**machine.world, nvml=library, run=lambda argv: topo, environ=environ or {}, **kwargs)

    return look


def two_nodes(machine):
    machine.cpus([(0,), (1,), (2,), (3,)])
    machine.nodes({0: "0-1", 1: "2-3"})
    machine.status("0-3", "0-1")


def test_this_machine_is_read_without_nvml_or_errors():
    host = probe(environ={})
    assert host.cpus_allowed
    assert set(host.cpus_allowed) <= {cpu for core in host.cores for cpu in core.cpus}
    assert host.gpus or any("no GPUs" in note for note in host.notes)


def test_the_driver_binding_is_not_loaded_by_import():
    code = "import sys, toolkit.host.probe; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_driver_that_does_not_match_its_library_is_a_note(machine, monkeypatch):
    def refuse():
        raise NvmlError("Driver/library version mismatch")

    monkeypatch.setattr("toolkit.host.probe.load_nvml", refuse)
    host = probe(**machine.world, environ={})
    assert host.gpus == ()
    assert host.notes == ("no GPUs: Driver/library version mismatch",)


def test_an_empty_tree_gives_a_host_of_unknowns(tmp_path):
    host = probe(tmp_path, tmp_path, tmp_path, FakeNvml(), lambda argv: None, environ={})
    assert (host.gpus, host.numa, host.nics, host.memory_bytes, host.mems_allowed) == ((), (), (), None, None)
    assert host.limits.memlock_bytes is None


def test_sysfs_says_the_node_of_a_gpu(machine, look):
    two_nodes(machine)
    machine.pci("pci0000:00/0000:01:00.0", numa_node=1)
    gpu = look(FakeGpu(near_nodes=(0,))).gpus[0]
    assert (gpu.numa_nodes, gpu.cpus) == ((1,), (2, 3))


def test_where_sysfs_says_minus_one_nvml_is_asked(machine, look):
    two_nodes(machine)
    machine.pci("pci0000:00/0000:01:00.0", numa_node=-1)
    gpu = look(FakeGpu(near_nodes=(1,), near_cpus=(2, 3))).gpus[0]
    assert (gpu.numa_nodes, gpu.cpus) == ((1,), (2, 3))


def test_where_nvml_does_not_know_the_node_nvidia_smi_is_asked(machine, look):
    two_nodes(machine)
    topo = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-1\t0\t\tN/A\n"
    gpu = look(FakeGpu(), topo=topo).gpus[0]
    assert (gpu.numa_nodes, gpu.cpus) == ((0,), (0, 1))


@pytest.mark.parametrize("topo", [None, "garbage", "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t\t\tN/A\n"])
def test_a_node_that_nobody_knows_stays_unknown_and_is_said(machine, look, topo):
    two_nodes(machine)
    machine.pci("pci0000:00/0000:01:00.0", numa_node=-1)
    host = look(FakeGpu(), topo=topo)
    assert host.gpus[0].numa_nodes is None
    assert "the NUMA node of GPU 0 is unknown" in host.notes


def test_a_node_of_gpu_memory_is_no_affinity(machine, look):
    machine.cpus([(0,), (1,)])
    machine.nodes({0: "0-1", 2: ""})
    machine.pci("pci0000:00/0000:01:00.0", numa_node=2)
    gpu = look(FakeGpu(near_nodes=(0, 3), near_cpus=(0, 1), own_node=2)).gpus[0]
    assert (gpu.numa_nodes, gpu.gpu_numa_id) == ((0, 3), 2)


def test_a_process_of_ours_holds_memory_under_its_name(machine, look):
    machine.process(4242, "vllm")
    gpu = look(FakeGpu(total=Memory(80 * GIB, GIB), held=(Process(4242, GIB),))).gpus[0]
    assert gpu.holders == (Holder(pid=4242, name="vllm", used_bytes=GIB),)


def test_a_pid_that_is_not_here_is_an_unknown_holder(look):
    gpu = look(FakeGpu(total=Memory(80 * GIB, GIB), held=(Process(999, GIB),))).gpus[0]
    assert gpu.holders == (Holder(pid=None, name=None, used_bytes=GIB),)


def test_in_a_container_a_pid_counts_only_with_a_gpu_open(machine, look):
    machine.namespace("pid:[4026532999]")
    machine.process(7, "bash", ("/dev/pts/0",))
    machine.process(8, "sglang", ("/dev/nvidia0",))
    gpu = look(FakeGpu(total=Memory(80 * GIB, 2 * GIB), held=(Process(7, GIB), Process(8, GIB)))).gpus[0]
    assert [(holder.pid, holder.name) for holder in gpu.holders] == [(None, None), (8, "sglang")]


def test_memory_in_use_without_a_process_has_an_unknown_holder(look):
    gpu = look(FakeGpu(total=Memory(80 * GIB, 5 * GIB))).gpus[0]
    assert gpu.holders == (Holder(pid=None, name=None, used_bytes=5 * GIB),)


def test_what_listed_processes_do_not_explain_has_an_unknown_holder(machine, look):
    machine.process(1, "llm")
    gpu = look(FakeGpu(total=Memory(80 * GIB, 5 * GIB), held=(Process(1, 2 * GIB),))).gpus[0]
    assert gpu.holders[-1] == Holder(pid=None, name=None, used_bytes=3 * GIB)


def test_the_drivers_own_memory_is_used_and_named(look):
    gpu = look(FakeGpu(total=Memory(80 * GIB, 0, 600 * MIB))).gpus[0]
    assert gpu.used_bytes == 600 * MIB
    assert gpu.holders == (Holder(pid=None, name="driver", used_bytes=600 * MIB),)


def test_memory_that_nvml_does_not_tell_is_unknown_not_zero(look):
    gpu = look(FakeGpu(total=None)).gpus[0]
    assert (gpu.memory_bytes, gpu.used_bytes) == (None, None)


def test_mig_devices_have_their_own_memory_and_holders(look):
    facts = MigFacts(0, "MIG-1", "1g.10gb", Memory(10 * GIB, GIB), ())
    device = look(FakeGpu(slices=(facts,))).gpus[0].mig[0]
    assert (device.memory_bytes, device.profile) == (10 * GIB, "1g.10gb")
    assert device.holders == (Holder(pid=None, name=None, used_bytes=GIB),)
    assert look(FakeGpu(slices=())).gpus[0].mig == ()


def test_a_lost_gpu_is_noted_and_the_others_are_kept(look):
    host = look(NvmlError("GPU is lost"), FakeGpu())
    assert [gpu.index for gpu in host.gpus] == [1]
    assert any("GPU 0" in note and "GPU is lost" in note for note in host.notes)


def pair(**kwargs):
    return FakeGpu(id="GPU-a", bus_id="00000000:01:00.0", **kwargs), FakeGpu(
        id="GPU-b", bus_id="00000000:02:00.0", **kwargs
    )


def link(look, gpus, topo=None, **kwargs):
    return look(nvml=FakeNvml(list(gpus), **kwargs), topo=topo).links[0].link


def test_links_to_the_other_gpu_are_counted(look):
    a, b = pair()
    a.links = (NvLink("gpu", "00000000:02:00.0"),) * 4 + (NvLink("gpu", "00000000:03:00.0"),)
    assert link(look, (a, b)) == "NV4"


def test_links_over_a_switch_are_counted(look):
    assert link(look, pair(links=(SWITCH,) * 18), peers={(0, 1): True}) == "NV18"


def test_a_switch_that_does_not_join_the_two_is_no_link(look):
    assert link(look, pair(links=(SWITCH,) * 18), peers={(0, 1): False}, ancestors={(0, 1): "SYS"}) == "SYS"


def test_peers_with_hidden_links_are_asked_of_nvidia_smi(look):
    topo = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0\nGPU1\tNV18\t X \t0\n"
    assert link(look, pair(), topo=topo, peers={(0, 1): True}) == "NV18"


def test_an_unknown_relation_is_none(look):
    assert link(look, pair()) is None


def test_the_parents_list_of_gpus_narrows_ours(look):
    host = look(*pair(), environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert [(gpu.index, gpu.uuid) for gpu in host.gpus] == [(1, "GPU-b")]
    assert host.links == ()
    assert any("CUDA_VISIBLE_DEVICES=1" in note for note in host.notes)


def test_memory_that_grows_later_is_not_the_limit(machine, look):
    machine.cgroup("0::/", [mount_v2()], {"memory.max": str(512 * GIB), "memory.current": "1"})
    host = look()
    assert host.memory_bytes == 512 * GIB
    assert any("memory is added" in note for note in host.notes)


def test_a_limit_under_the_machines_memory_is_the_limit(machine, look):
    machine.cgroup("0::/", [mount_v2()], {"memory.max": str(8 * GIB)})
    host = look()
    assert (host.memory_bytes, host.limits.memory_bytes) == (8 * GIB, 8 * GIB)


def test_allowed_cpus_are_those_of_status_cpuset_and_what_is_online(machine, look):
    machine.cpus([(0,), (1,), (2,), (3,)])
    machine.status("1-63", "0-63")
    machine.nodes({0: "0-3"})
    machine.cgroup("0::/", [mount_v2()], {"cpuset.cpus.effective": "0-2"})
    host = look()
    assert (host.cpus_allowed, host.mems_allowed) == ((1, 2), (0,))


def test_limits_of_the_process_are_read(machine, look):
    head = "Limit                     Soft Limit           Hard Limit           Units\n"
    limits = "Max locked memory         unlimited            unlimited            bytes\n"
    write(machine.proc, {"self/limits": head + limits + "Max open files            1024                 4096   files"})
    found = look(mempolicy_permitted=lambda: False).limits
    assert (found.memlock_bytes, found.open_files, found.mempolicy_permitted) == (UNLIMITED, 1024, False)
    assert found.shm_bytes > 0


def test_nics_know_the_gpus_near_them(machine, look):
    machine.pci("pci0000:00/0000:00:01.0/0000:01:00.0", numa_node=0)
    machine.pci("pci0000:80/0000:80:01.0/0000:02:00.0", numa_node=1)
    card = machine.pci("pci0000:00/0000:00:01.0/0000:01:00.1", numa_node=0)
    machine.network("infiniband", "mlx5_0", card)
    machine.network("net", "ib0", card)
    (machine.sysfs / "class/net/lo").mkdir()
    (nic,) = look(*pair()).nics
    assert (nic.name, nic.numa_node, nic.nearest_gpus, nic.link) == ("mlx5_0", 0, (0,), "PIX")


def test_a_mps_daemon_is_seen_by_its_pipes_and_its_process(machine, look, tmp_path):
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps")}
    assert look(environ=environ).mps_daemon is False
    write(tmp_path, {"mps/control": ""})
    assert "left over" in look(environ=environ).notes[-1]
    machine.process(77, "nvidia-cuda-mps")
    assert look(environ=environ).mps_daemon is True


def test_in_a_container_pipes_without_a_process_are_unknown(machine, look, tmp_path):
    machine.namespace("pid:[4026532999]")
    write(tmp_path, {"mps/control": ""})
    assert look(FakeGpu(), environ={"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "mps")}).mps_daemon is None


def test_an_assumed_context_is_said_and_a_measured_one_is_kept(look):
    assumed = look(FakeGpu())
    assert assumed.context_bytes == ASSUMED_CONTEXT_BYTES
    assert any("assumed" in note for note in assumed.notes)
    measured = look(FakeGpu(), context_bytes=lambda driver, gpus: 500 * MIB if driver and gpus else None)
    assert measured.context_bytes == 500 * MIB
    assert not any("assumed" in note for note in measured.notes)
    assert look().context_bytes is None
