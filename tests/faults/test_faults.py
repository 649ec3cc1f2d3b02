"""Every row of the fault table, on real processes; the same invariants hold after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults import invariants
from tests.faults.ends import Before
from tests.faults.scene import Scene
from tests.faults.table import BY_NAME, TABLE, Fault

AT_ONCE = 3  # a row mostly waits


def undisturbed(folder: Path) -> Counter[str]:
    """What a supervisor has open whose services have just become ready."""
    scene = Scene(folder, "")
    try:
        scene.start(again=True)
        scene.wait_ready()
        found = scene.descriptors()
        scene.down()
    finally:
        scene.end()
    return found


def befall(fault: Fault, folder: Path, opened: Counter[str]) -> None:
    """Raises AssertionError when it does not end as its row says."""
    (folder / "run").mkdir(mode=0o700)
    scene = Scene(folder, fault.name)
    try:
        fault.prepare(scene)
        scene.start()
        before = Before({}, opened)
        if fault.strikes == "serving":
            scene.wait_ready()
            before = Before({each["name"]: each["pid"] for each in scene.status()["services"]}, scene.descriptors())
        fault.inject(scene)
        fault.end(scene, fault, before)
        scene.down()
        invariants.hold(scene)
    finally:
        scene.end()


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[None]]]:
    """The rows that this run is asked for, a few at once, each in a deployment of its own."""
    asked = [item.callspec.id for item in request.session.items if getattr(item, "module", None) is request.module]
    faults = [fault for fault in map(BY_NAME.__getitem__, asked) if fault.needs()]
    opened = undisturbed(tmp_path_factory.mktemp("undisturbed"))
    folders = [tmp_path_factory.mktemp("fault") for _ in faults]
    pool = ThreadPoolExecutor(AT_ONCE)
    pairs = zip(faults, folders, strict=True)
    yield {fault.name: pool.submit(befall, fault, folder, opened) for fault, folder in pairs}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name)
def test_a_fault_ends_as_its_row_says(fault: Fault, outcomes: Mapping[str, Future[None]]) -> None:
    if fault.name not in outcomes:
        pytest.skip("this machine does not allow it")
    outcomes[fault.name].result()
