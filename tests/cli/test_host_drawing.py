from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from toolkit.cli.host_drawing import draw
from toolkit.host import record
from toolkit.host.model import Core, Gpu, GpuLink, Holder, Host
from toolkit.units import GIB

RECORDS = Path(__file__).resolve().parents[1] / "host" / "records"


def lines(host, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(draw(host))
    return console.export_text().splitlines()


def words(name):
    return [" ".join(line.split()) for line in lines(record.load(RECORDS / f"{name}.json"))]


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_a_machine_fits_in_eighty_columns(path):
    assert max(map(len, lines(record.load(path)))) <= 80


def test_sockets_nodes_and_what_is_allowed_of_them_are_shown():
    drawn = words("dgx_h100")
    assert "0 0 0-55,112-167 (allowed: 4-55,116-167) 56 1007.4 GiB 0 1 2 3" in drawn
    assert "1 1 56-111,168-223 56 1007.4 GiB 4 5 6 7" in drawn


def test_links_that_are_all_alike_take_one_line():
    assert "Links between GPUs: NV18 between any two" in words("dgx_h100")


def test_unlike_links_are_a_matrix():
    gpus = tuple(Gpu(index=at, uuid=f"GPU-{at}", name=None, memory_bytes=None, used_bytes=None) for at in range(3))
    links = (GpuLink(a=0, b=1, link="NV4"), GpuLink(a=0, b=2, link="SYS"), GpuLink(a=1, b=2, link=None))
    drawn = [line.split() for line in lines(Host(gpus=gpus, links=links, cores=(Core(cpus=(0,)),), cpus_allowed=(0,)))]
    for row in (["0", "·", "NV4", "SYS"], ["1", "NV4", "·", "?"], ["2", "SYS", "?", "·"]):
        assert row in drawn


def test_nodes_without_cpus_are_told_apart_by_whose_memory_they_are():
    drawn = words("gb200")
    assert "- 10 none: GPU memory 0 184.0 GiB 1" in drawn
    assert "- 3-9,11-17,19-25,27-33 none 0 empty" in drawn


def test_an_unknown_node_is_a_question_mark():
    assert any(line.startswith("0 H200") and line.endswith(" ? 0-15") for line in words("vm_one_h200"))


def test_slices_are_listed_with_their_own_memory_and_holders():
    drawn = "\n".join(words("a100_mig"))
    assert "0.1 MIG 3g.40gb MIG-92276658 9.6 GiB / 39.2 GiB" in drawn
    assert "GPU 0.1 python (34965) 9.6 GiB" in drawn


def test_who_holds_memory_is_named_and_the_unknown_are_not_hidden():
    assert "GPU 0 Xorg (2301) 450.0 MiB, unknown holder 160.0 MiB" in words("two_gpus_two_nodes")


def test_limits_and_notes_are_shown():
    drawn = words("vm_one_h200")
    for fact in ("container memory 128.0 GiB, 2.0 GiB used", "locked memory 64.0 KiB", "memory policy refused"):
        assert fact in drawn
    assert "the NUMA node of GPU 0 is unknown" in drawn
    assert "No GPUs" in words("laptop_no_gpu")


def test_brackets_in_a_name_are_not_taken_for_markup():
    holder = Holder(pid=1, name="[red]x", used_bytes=GIB)
    gpu = Gpu(index=0, uuid="GPU-0", name="A", memory_bytes=GIB, used_bytes=GIB, holders=(holder,))
    drawn = "\n".join(lines(Host(gpus=(gpu,), cores=(Core(cpus=(0,)),), cpus_allowed=(0,))))
    assert "[red]x" in drawn
