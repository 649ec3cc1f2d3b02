"""Every row of the fault table, on real processes; the same invariants hold after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import invariants
from tests.faults.ends import Before
from tests.faults.scene import Scene
from tests.faults.table import TABLE, Fault


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """What a supervisor has open whose services have just become ready."""
    scene = Scene(tmp_path_factory.mktemp("undisturbed"), "")
    try:
        scene.start(again=True)
        scene.wait_ready()
        found = scene.descriptors()
        scene.down()
    finally:
        scene.end()
    return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    (tmp_path / "run").mkdir(mode=0o700)
    made = Scene(tmp_path, "")
    yield made
    made.end()


@pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name)
def test_a_fault_ends_as_its_row_says(fault: Fault, scene: Scene, undisturbed: Counter[str]) -> None:
    if not fault.needs():
        pytest.skip("this machine does not allow it")
    scene.fault = fault.name
    fault.prepare(scene)
    scene.start()
    before = Before({}, undisturbed)
    if fault.strikes == "serving":
        scene.wait_ready()
        before = Before({each["name"]: each["pid"] for each in scene.status()["services"]}, scene.descriptors())
    fault.inject(scene)
    fault.end(scene, fault, before)
    scene.down()
    invariants.hold(scene)
