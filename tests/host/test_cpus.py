from __future__ import annotations

from toolkit.host import cpus


def test_siblings_are_one_core_with_its_node_cache_and_socket(machine):
    machine.cpus([(0, 4), (1, 5), (2, 6), (3, 7)], sockets=[0, 0, 1, 1], cache=2)
    machine.nodes({0: "0-1,4-5", 1: "2-3,6-7"})
    cores = cpus.read_cores(machine.sysfs, (), cpus.read_nodes(machine.sysfs))
    assert [core.cpus for core in cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [core.numa_node for core in cores] == [0, 0, 1, 1]
    assert [core.cache_group for core in cores] == [0, 0, 1, 1]
    assert [core.socket for core in cores] == [0, 0, 1, 1]


def test_an_offline_sibling_is_no_part_of_its_core(machine):
    machine.cpus([(0, 4), (1, 5)])
    (machine.sysfs / "devices/system/cpu/online").write_text("0-1,4\n")
    assert [core.cpus for core in cpus.read_cores(machine.sysfs, (), ())] == [(0, 4), (1,)]


def test_without_a_topology_each_allowed_cpu_is_a_core(tmp_path):
    cores = cpus.read_cores(tmp_path, (2, 3), ())
    assert [(core.cpus, core.numa_node, core.socket) for core in cores] == [((2,), None, None), ((3,), None, None)]


def test_a_machine_without_an_l3_is_grouped_by_its_last_cache(machine):
    machine.cpus([(0,), (1,)])
    for cpu in (0, 1):
        (machine.sysfs / f"devices/system/cpu/cpu{cpu}/cache/index3/level").write_text("0\n")
    assert [core.cache_group for core in cpus.read_cores(machine.sysfs, (), ())] == [0, 1]


def test_a_node_without_cpus_is_kept_as_memory_only(machine):
    machine.nodes({0: "0-71", 2: ""}, distance={0: "10 80", 2: "80 10"})
    nodes = cpus.read_nodes(machine.sysfs)
    assert [(node.node, node.cpus == ()) for node in nodes] == [(0, False), (2, True)]
    assert nodes[0].distances == {0: 10, 2: 80}
    assert nodes[1].memory_bytes == 32 * 1024**3


def test_a_kernel_without_numa_has_no_nodes(tmp_path):
    assert cpus.read_nodes(tmp_path) == ()
