from __future__ import annotations

import pytest

from toolkit.host.pci import PciPlace, address, level, nearest


def at(path, node=None):
    return PciPlace(tuple(path.split("/")), node)


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("p0/rp/gpu", "p0/rp/nic", "PIX"),
        ("p0/rp/up/d1/gpu", "p0/rp/up/d2/nic", "PIX"),
        ("p0/rp/up/d1/up2/d3/gpu", "p0/rp/up/d2/nic", "PXB"),
        ("p0/rp1/gpu", "p0/rp2/nic", "PHB"),
    ],
)
def test_the_shared_bridge_tells_the_level(a, b, wanted):
    assert level(at(a), at(b)) == level(at(b), at(a)) == wanted


def test_different_host_bridges_are_told_apart_by_node_only_where_it_is_known():
    assert level(at("p0/a", 0), at("p1/b", 0)) == "NODE"
    assert level(at("p0/a", 0), at("p1/b", 1)) == "SYS"
    assert level(at("p0/a", 0), at("p1/b", None)) is None


def test_an_unknown_level_might_be_the_closest():
    gpus = {0: at("p1/g0", 0), 1: at("p2/g1", None)}
    assert nearest(at("p0/nic", 0), gpus) == (None, None)
    assert nearest(at("p1/nic", 0), gpus) == ((0,), "PHB")


def test_addresses_of_nvml_are_written_as_sysfs_does():
    assert address("00000000:0A:00.0") == "0000:0a:00.0"
    assert address("00010000:0A:00.0") == "10000:0a:00.0"
    assert address("nonsense") is None
