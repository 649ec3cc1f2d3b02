from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolkit.host.model import Core
from toolkit.plan.ranks import split

# Eight cores on two nodes; the siblings of core n are n and n + 8.
CORES = tuple(Core(cpus=(n, n + 8), numa_node=n // 4) for n in range(8))
ALL = tuple(range(16))


def test_each_rank_gets_whole_cores_beside_its_device():
    assert split(ALL, CORES, [1, 0]) == ((4, 5, 6, 7, 12, 13, 14, 15), (0, 1, 2, 3, 8, 9, 10, 11))
    assert split(ALL, CORES, [0, 0, 1, 1]) == ((0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13), (6, 7, 14, 15))


def test_a_rank_whose_node_has_no_cores_left_gets_those_of_another():
    assert split((0, 8, 1, 9, 4, 12), CORES, [1, 1]) == ((0, 4, 8, 12), (1, 9))


def test_with_fewer_cores_than_ranks_siblings_are_parted_and_then_shared():
    assert split((0, 8), CORES, [None, 0]) == ((8,), (0,)) or split((0, 8), CORES, [None, 0]) == ((0,), (8,))
    assert split((0,), CORES, [None, 0]) == ((0,), (0,))


def test_without_cpus_there_is_nothing_to_pin():
    assert split((), CORES, [0, 0]) == ()


@given(st.sets(st.integers(0, 15), min_size=1), st.lists(st.sampled_from([None, 0, 1, 7]), min_size=1, max_size=6))
def test_every_cpu_is_given_once_and_no_rank_is_left_without(cpus: set[int], nodes: list[int | None]):
    found = split(tuple(sorted(cpus)), CORES, nodes)
    assert len(found) == len(nodes)
    assert all(found)
    dealt = sorted(cpu for mine in found for cpu in mine)
    if len(cpus) >= len(nodes):
        assert dealt == sorted(cpus)
    cores = [core for core in CORES if cpus & set(core.cpus)]
    if len(cores) >= len(nodes):
        assert all(any(cpus & set(core.cpus) <= set(mine) for mine in found) for core in cores)
        sizes = [sum(bool(set(mine) & set(core.cpus)) for core in cores) for mine in found]
        assert max(sizes) - min(sizes) <= 1
