"""What becomes of a deployment after a fault, while its supervisor, or the next one, still runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.cli.deployments import until

if TYPE_CHECKING:
    from tests.faults.scene import Scene
    from tests.faults.table import Fault


@dataclass(frozen=True)
class Before:
    """What was there before the fault: pids by service (none: the fault strikes at the start), open descriptors."""

    pids: Mapping[str, int | None]
    descriptors: Counter[str]


def untouched(scene: Scene, fault: Fault, before: Before) -> None:
    """Every service is the same process as before."""
    assert {each["name"]: (each["pid"], each["attempt"]) for each in scene.status()["services"]} == {
        name: (pid, 1) for name, pid in before.pids.items()
    }
    in_good_order(scene, before)


def replaced(scene: Scene, fault: Fault, before: Before) -> None:
    """A later attempt serves; what is behind it was not touched."""
    until(lambda: scene.service()["attempt"] >= fault.attempt and scene.is_ready())
    web = scene.service()
    _told(web, fault)
    if not fault.any_attempt:
        assert web["attempt"] == fault.attempt
    if before.pids:
        assert web["pid"] != before.pids["web"]
        assert scene.service("behind")["pid"] == before.pids["behind"]
    assert scene.service("behind")["attempt"] == 1
    in_good_order(scene, before)


def given_up(scene: Scene, fault: Fault, before: Before) -> None:
    """It failed for good, with the reason; what waits for it was never started."""
    until(lambda: scene.service(fault.victim)["state"] == "FAILED")
    found = scene.service(fault.victim)
    _told(found, fault)
    assert found["attempt"] == fault.attempt
    until(lambda: not scene.members(fault.victim))
    if fault.victim == "web":
        until(lambda: scene.service("behind")["state"] == "FAILED")
        assert scene.service("behind")["last_failure"]["class"] == "dependency"
        assert not [each for each in scene.events() if (each["kind"], each["service"]) == ("spawned", "behind")]


def all_gone(scene: Scene, fault: Fault, before: Before) -> None:
    """Nothing is left, and the next supervisor starts everything."""
    scene.keeper.process.join(60.0)
    until(lambda: not scene.members() and not scene.guardians())
    assert scene.grants() == []
    scene.start(again=True)
    scene.wait_ready()
    in_good_order(scene, before)


def taken_over(scene: Scene, fault: Fault, before: Before) -> None:
    """The next supervisor has the same processes."""
    until(lambda: not scene.guardians())
    assert sorted(filter(None, scene.grants())) == ["behind", "web"]
    scene.start(again=True)
    scene.wait_ready()
    untouched(scene, fault, before)


def _told(service: Mapping[str, Any], fault: Fault) -> None:
    """Why, and in which state it ended."""
    failure = service["last_failure"]
    if not fault.reason:
        assert failure is None
        return
    assert re.search(fault.reason, failure["summary"]), failure["summary"]
    assert failure["state"] in fault.stage.split("|")


def in_good_order(scene: Scene, before: Before) -> None:
    """No zombie, no leaked descriptor, two guardians, and nothing of an earlier attempt."""
    until(lambda: not scene.zombies())
    until(lambda: not scene.descriptors() - before.descriptors)
    until(lambda: len(scene.guardians()) == 2)
    current = {f"{each['name']}.{each['attempt']}" for each in scene.status()["services"]}
    until(lambda: scene.attempts() == current)
