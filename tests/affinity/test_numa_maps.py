from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.affinity.numa_maps import anonymous_bytes, measure

TWO_NODES = (Path(__file__).with_name("data") / "two_nodes.numa_maps").read_text()
KIB, MIB = 1024, 1024**2


def test_memory_of_no_file_is_counted_in_bytes_with_its_page_size() -> None:
    assert anonymous_bytes(TWO_NODES) == {
        0: (4000 + 16 + 12) * 4 * KIB + 2 * MIB,
        1: (120 + 8) * 4 * KIB + 2 * 2 * MIB,
    }


def test_an_empty_map_has_no_pages() -> None:
    assert anonymous_bytes("") == {}


def test_a_file_named_like_a_count_is_not_one() -> None:
    assert anonymous_bytes("7f00 default anon=1 \\040N1=5 N0=1 kernelpagesize_kB=4\n") == {0: 4 * KIB}


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid in (10, 11):
        (tmp_path / str(pid)).mkdir()
    (tmp_path / "10" / "numa_maps").write_text("1 bind:0 anon=30 N0=30 kernelpagesize_kB=4\n")
    (tmp_path / "11" / "numa_maps").write_text("1 bind:0 heap anon=10 N1=10 kernelpagesize_kB=4\n")
    return tmp_path


def test_the_part_on_plan_is_over_all_processes(proc: Path) -> None:
    placement = measure([10, 11, 999], (0,), 2, proc)
    assert placement.bytes_by_node == {0: 30 * 4 * KIB, 1: 10 * 4 * KIB}
    assert placement.on_plan_percent == 75.0
    assert placement.why is None
    assert measure([10, 11], (0, 1), 2, proc).on_plan_percent == 100.0


def test_on_one_node_it_is_not_measurable(proc: Path) -> None:
    placement = measure([10], (0,), 1, proc)
    assert placement.on_plan_percent is None
    assert "not measurable: this host has one NUMA node" in str(placement.why)


def test_no_pages_no_plan_and_no_permission_are_told_apart(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no pages" in str(measure([999], (0,), 2, proc).why)
    assert "planned" in str(measure([10], (), 2, proc).why)

    def denied(*_args: object, **_kwargs: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", denied)
    assert "process 10 may not be read" in str(measure([10], (0,), 2, proc).why)


def test_our_own_map_is_understood() -> None:
    text = Path("/proc/self/numa_maps").read_text()
    assert sum(anonymous_bytes(text).values()) > MIB


@given(st.dictionaries(st.integers(0, 63), st.integers(1, 10**9), max_size=4), st.sampled_from([4, 64, 2048]))
def test_what_the_kernel_writes_is_read_back(pages: dict[int, int], page_kb: int) -> None:
    counts = " ".join(f"N{node}={count}" for node, count in sorted(pages.items()))
    line = f"7f0000000000 bind:0-1 anon={sum(pages.values())} {counts} kernelpagesize_kB={page_kb}\n"
    assert anonymous_bytes(line) == {node: count * page_kb * KIB for node, count in sorted(pages.items())}


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    anonymous_bytes(text)
