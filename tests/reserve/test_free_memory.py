from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.host.machines import FakeGpu, FakeNvml, Machine
from toolkit.host import gpu_use
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.host.nvml import Memory, Process
from toolkit.reserve.free_memory import TOLERANCE_BYTES, Neighbour, compare
from toolkit.units import GIB, MIB


def use(*holders: Holder, used: int | None = None) -> DeviceUse:
    total = sum(holder.used_bytes or 0 for holder in holders)
    return DeviceUse("GPU-a", 0, 80 * GIB, total if used is None else used, holders)


def holder(pid: int | None, gib: int, name: str | None = "python3") -> Holder:
    return Holder(pid=pid, name=name, used_bytes=gib * GIB)


def test_what_the_ledger_promises_is_there():
    assert compare(40 * GIB, use(holder(5, 30)), [Neighbour(40 * GIB, frozenset({5}))]) is None


def test_a_stranger_who_came_after_the_plan_is_named_with_what_is_missing():
    found = compare(60 * GIB, use(holder(77, 30, "jupyter")), [])
    assert str(found) == (
        "10.0 GiB of memory is missing on GPU 0 (60.0 GiB needed, 50.0 GiB left): jupyter (pid 77) holds 30.0 GiB"
    )


def test_what_a_neighbour_has_not_used_yet_is_not_free():
    found = compare(50 * GIB, use(holder(5, 1)), [Neighbour(40 * GIB, frozenset({5}))])
    assert found is not None
    assert found.free_bytes == 40 * GIB


def test_a_neighbour_over_its_grant_is_told():
    found = compare(40 * GIB, use(holder(5, 50)), [Neighbour(40 * GIB, frozenset({5}))])
    assert "other services use 10.0 GiB more than was granted to them" in str(found)


def test_a_stranger_that_leaves_room_is_told_when_the_plan_did_not_know_it():
    busy = use(holder(77, 30, "jupyter"))
    found = compare(40 * GIB, busy, [], grantable_bytes=75 * GIB)
    assert found is not None
    assert not found.blocks
    assert str(found) == "25.0 GiB more than planned is in use on GPU 0: jupyter (pid 77) holds 30.0 GiB"
    assert compare(40 * GIB, busy, [], grantable_bytes=50 * GIB) is None
    assert compare(None, busy, [], grantable_bytes=75 * GIB) is not None


def test_memory_without_a_holder_is_an_unknown_holders():
    found = compare(60 * GIB, use(used=30 * GIB), [])
    assert "unknown holder holds 30.0 GiB" in str(found)


def test_hidden_use_is_a_started_neighbours_up_to_its_grant():
    hidden = use(holder(None, 38, None))
    assert compare(40 * GIB, hidden, [Neighbour(40 * GIB, frozenset({5}))]) is None
    found = compare(40 * GIB, hidden, [Neighbour(40 * GIB, frozenset({5}), started=False)])
    assert found is not None


def test_an_unknown_amount_is_no_shortage():
    assert compare(GIB, DeviceUse("GPU-a", 0, None, None), []) is None


def test_rounding_is_no_shortage():
    assert compare(80 * GIB - MIB, use(used=TOLERANCE_BYTES), []) is None


def test_the_drivers_own_part_is_told_as_such(tmp_path):
    gpu = FakeGpu(id="GPU-a", total=Memory(80 * GIB, 9 * GIB, GIB), held=(Process(41, 9 * GIB),))
    machine = Machine(tmp_path)
    machine.process(41, "python3")
    found = compare(75 * GIB, gpu_use.read(FakeNvml([gpu]), machine.proc)[0], [])
    assert "python3 (pid 41) holds 9.0 GiB, the driver holds 1.0 GiB" in str(found)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(0, 80), st.integers(0, 40))
def test_a_start_is_let_through_only_when_all_grants_still_fit(needed, granted, used, foreign):
    device = use(holder(5, used), holder(77, foreign))
    found = compare(needed * GIB, device, [Neighbour(granted * GIB, frozenset({5}))])
    assert (found is None or not found.blocks) == (needed + max(granted, used) + foreign <= 80)
