from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.affinity import Placement as Pages
from toolkit.affinity import Report, Thread
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Holder
from toolkit.supervise.placement import Expected, Placement, Seen, judge, kinds, news
from toolkit.units import GIB

ONE_NODE = Pages({}, None, "not measurable: this host has one NUMA node")
ALL_ON_PLAN = Report(4, (), ())
STRAY = Thread(10, 12, "worker", (0, 1, 2, 3))
DRIVER = Holder(pid=None, name="driver", used_bytes=GIB)
MINE = Holder(pid=10, name="python3", used_bytes=5 * GIB)
STRANGER = Holder(pid=77, name="jupyter", used_bytes=2 * GIB)
HIDDEN = Holder(pid=None, name=None, used_bytes=2 * GIB)


def gpu(*holders: Holder, uuid: str = "GPU-a", index: int = 0) -> DeviceUse:
    return DeviceUse(uuid, index, 80 * GIB, sum(h.used_bytes or 0 for h in holders), holders)


def seen(*devices: DeviceUse, threads: Report = ALL_ON_PLAN, pages: Pages = ONE_NODE) -> Seen:
    return Seen(frozenset({10, 11}), threads, pages, devices)


def expected(**changes: object) -> Expected:
    return Expected(**{"budgets": {"GPU-a": 5 * GIB}, "alone": True, "context_bytes": GIB, **changes})  # type: ignore[arg-type]


def test_an_instance_that_is_where_it_was_planned_drifts_in_nothing() -> None:
    found = judge(seen(gpu(MINE, DRIVER)), expected())
    assert found.drift == {}
    assert found.not_measurable == ("pages: this host has one NUMA node",)


def test_a_thread_that_may_run_elsewhere_is_named() -> None:
    found = judge(seen(threads=Report(4, (STRAY,), ())), expected())
    assert found.threads.on_plan_percent == 75.0
    assert found.drift["threads"] == (
        "1 of 4 threads are not held to the plan: worker (pid 10, thread 12) may run on 0-3"
    )


def test_of_many_threads_the_first_ones_are_named_and_the_rest_counted() -> None:
    strays = tuple(Thread(10, tid, "w", (0, 1)) for tid in range(9))
    found = judge(seen(threads=Report(9, strays, ())), expected())
    assert found.drift["threads"].endswith("; 6 more")


def test_pages_beside_the_bound_nodes_are_drift_and_beside_preferred_ones_are_not() -> None:
    pages = Pages({0: 3 * GIB, 1: GIB}, 75.0)
    assert judge(seen(pages=pages), expected(bound=True)).drift == {
        "pages": "75.0% of its memory is on the NUMA nodes it is bound to"
    }
    assert judge(seen(pages=pages), expected(bound=False)).drift == {}


def test_our_process_on_a_device_that_was_not_planned_is_foreign() -> None:
    found = judge(seen(gpu(MINE, DRIVER), gpu(MINE, uuid="GPU-b", index=1)), expected())
    assert [(each.uuid, each.holder.pid, each.ours) for each in found.foreign] == [("GPU-b", 10, True)]
    assert "a device that the plan did not give" in found.drift["foreign GPU-b 10"]


def test_a_service_without_gpus_that_uses_one_is_foreign_there() -> None:
    assert [each.ours for each in judge(seen(gpu(MINE)), Expected()).foreign] == [True]


@pytest.mark.parametrize(("alone", "found"), [(True, [77]), (False, [])])
def test_somebody_else_on_our_device_is_foreign_only_where_we_are_to_be_alone(alone: bool, found: list[int]) -> None:
    judged = judge(seen(gpu(MINE, STRANGER, DRIVER)), expected(alone=alone))
    assert [each.holder.pid for each in judged.foreign] == found


def test_an_unknown_holder_beside_ours_is_foreign_and_stays_unknown() -> None:
    found = judge(seen(gpu(MINE, HIDDEN)), expected())
    assert [each.holder.pid for each in found.foreign] == [None]
    assert found.drift["foreign GPU-a None"].startswith("unknown holder on GPU 0")


def test_where_the_driver_hides_our_own_pids_foreign_contexts_cannot_be_told() -> None:
    found = judge(seen(gpu(HIDDEN, DRIVER)), expected())
    assert found.foreign == ()
    assert "who holds memory of GPU 0 is hidden from this pid namespace" in found.not_measurable


def test_a_budget_is_exceeded_when_use_is_over_budget_and_contexts() -> None:
    worker = Holder(pid=11, name="python3", used_bytes=3 * GIB)
    within = judge(seen(gpu(MINE, worker.model_copy(update={"used_bytes": 2 * GIB}))), expected())
    over = judge(seen(gpu(MINE, worker)), expected())
    assert within.over_budget == ()
    assert [(each.used_bytes, each.allowed_bytes) for each in over.over_budget] == [(8 * GIB, 7 * GIB)]


def test_hidden_use_of_a_device_that_is_ours_alone_counts_against_the_budget() -> None:
    hidden = Holder(pid=None, name=None, used_bytes=9 * GIB)
    assert len(judge(seen(gpu(hidden)), expected()).over_budget) == 1
    assert judge(seen(gpu(hidden)), expected(alone=False)).over_budget == ()


def test_an_unknown_budget_cannot_be_exceeded() -> None:
    assert judge(seen(gpu(MINE)), expected(budgets={"GPU-a": None})).over_budget == ()


def test_a_drift_is_news_once_and_again_after_it_was_gone() -> None:
    good, bad = judge(seen(), expected()), judge(seen(threads=Report(4, (STRAY,), ())), expected())
    assert len(news(None, bad)) == len(news(good, bad)) == 1
    assert news(bad, bad) == news(bad, good) == ()


@given(
    st.lists(
        st.builds(
            gpu,
            st.builds(
                Holder, pid=st.sampled_from([None, 10, 11, 77]), name=st.none(), used_bytes=st.none() | st.just(GIB)
            ),
            uuid=st.sampled_from(["GPU-a", "GPU-b"]),
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_every_foreign_context_and_excess_is_a_drift(devices: list[DeviceUse], alone: bool) -> None:
    found: Placement = judge(seen(*devices), expected(alone=alone))
    counted = kinds(found.drift)
    assert counted["foreign"] == len({(each.uuid, each.holder.pid) for each in found.foreign})
    assert counted["over budget"] == len({each.uuid for each in found.over_budget})
