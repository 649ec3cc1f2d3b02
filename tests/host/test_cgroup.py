from __future__ import annotations

from tests.host.machines import mount_v1, mount_v2
from toolkit.host.cgroup import Cgroup, memory_folder, oom_kills, read
from toolkit.units import GIB


def found(machine):
    return read(machine.sysfs, machine.proc)


def test_version_two_takes_the_tightest_group_above(machine):
    machine.cgroup(
        "0::/a/b",
        [mount_v2()],
        {
            "a/memory.max": str(8 * GIB),
            "a/memory.current": str(3 * GIB),
            "a/cpu.max": "250000 100000",
            "a/cpuset.cpus.effective": "0-3",
            "a/cpuset.mems.effective": "0",
            "a/b/memory.max": "max",
            "a/b/memory.current": str(GIB),
            "a/b/cpu.max": "max 100000",
        },
    )
    assert found(machine) == Cgroup(2, (0, 1, 2, 3), (0,), 2.5, 8 * GIB, 3 * GIB)


def test_version_one_reads_each_controller_in_its_own_hierarchy(machine):
    machine.cgroup(
        "4:memory:/pod\n3:cpuset:/set\n1:cpu,cpuacct:/pod",
        [mount_v1("memory"), mount_v1("cpuset"), mount_v1("cpu,cpuacct")],
        {
            "memory/pod/memory.limit_in_bytes": str(GIB),
            "memory/pod/memory.usage_in_bytes": "5",
            "cpuset/set/cpuset.cpus": "4-7",
            "cpuset/set/cpuset.mems": "1",
            "cpu,cpuacct/pod/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/pod/cpu.cfs_period_us": "100000",
        },
    )
    assert found(machine) == Cgroup(1, (4, 5, 6, 7), (1,), 0.5, GIB, 5)


def test_a_hybrid_takes_version_one_where_a_controller_is_there(machine):
    machine.cgroup(
        "4:memory:/x\n0::/y",
        [mount_v1("memory"), mount_v2("/unified")],
        {
            "memory/x/memory.limit_in_bytes": "9223372036854771712",
            "memory/x/memory.usage_in_bytes": "7",
            "unified/y/cpu.max": "100000 100000",
        },
    )
    assert found(machine) == Cgroup(1, None, None, 1.0, None, 7)


def test_a_container_whose_path_is_the_hosts_reads_the_root_of_its_mount(machine):
    machine.cgroup("4:memory:/docker/abc", [mount_v1("memory", "/docker/abc")], {"memory/memory.limit_in_bytes": "99"})
    assert found(machine).memory_bytes == 99
    machine.cgroup("0::/../other", [mount_v2()], {"memory.max": "55"})
    assert found(machine).memory_bytes == 55


def test_a_quota_of_minus_one_is_none(machine):
    machine.cgroup("1:cpu:/", [mount_v1("cpu")], {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"})
    assert found(machine).cpu_quota is None


def test_without_control_groups_nothing_is_limited(machine):
    assert found(machine) == Cgroup()


def test_kills_for_want_of_memory_are_counted_in_the_group_of_a_process(machine):
    machine.cgroup("0::/a", [mount_v2()], {"a/memory.events": "oom 2\noom_kill 5\noom_group_kill 1\n"})
    (machine.proc / "77").mkdir()
    (machine.proc / "77" / "cgroup").write_text("0::/a\n")
    folder = memory_folder(machine.sysfs, machine.proc, 77)
    assert folder is not None
    assert oom_kills(folder) == 5
    assert memory_folder(machine.sysfs, machine.proc, 78) is None


def test_version_one_counts_kills_beside_its_switches(machine):
    text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
    machine.cgroup("4:memory:/pod", [mount_v1("memory")], {"memory/pod/memory.oom_control": text})
    (machine.proc / "77").mkdir()
    (machine.proc / "77" / "cgroup").write_text("4:memory:/pod\n")
    folder = memory_folder(machine.sysfs, machine.proc, 77)
    assert folder is not None
    assert oom_kills(folder) == 3
    assert oom_kills(folder.parent) is None
