"""What holds after every fault, once the deployment was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.cli.deployments import until
from tests.faults.scene import Scene
from toolkit.supervise import ports

AT_REST = {"STOPPED", "FAILED"}
TIDY = {"events.jsonl", "lock", "logs", "status.json"}
Event = Mapping[str, Any]


def hold(scene: Scene) -> None:
    """Raises AssertionError with the first one that does not."""
    until(lambda: not scene.members() and not scene.guardians())
    assert {each["state"] for each in scene.last_status()["services"]} <= AT_REST
    events_hold(scene.events())
    assert scene.keeper.process.exitcode == 0, "the supervisor ended in good order"
    assert [owner.group for owner in scene.owners if owner.group and Path(owner.group).exists()] == []
    assert {path.name for path in scene.state.path.iterdir()} <= TIDY
    assert scene.grants_written() == [], "given back, not only taken from the dead"
    scene.cleanup.close()  # what the fault itself held
    ports.ensure_free(scene.ports)
    assert not any(path.stat().st_size for path in scene.folder.glob("*.alone")), "two attempts at once"


def events_hold(events: Sequence[Event]) -> None:
    assert double_starts(events) == []
    for run in runs(events):
        assert [event["id"] for event in run] == list(range(1, len(run) + 1)), "no event is lost"
        assert not [event for event in run if event["kind"] == "illegal_transition"]
        assert all(before["at"] <= after["at"] for before, after in pairwise(run)), "dates never go back"
        assert in_order(run)


def runs(events: Iterable[Event]) -> list[list[Event]]:
    """The events of each supervisor."""
    found: list[list[Event]] = []
    for event in events:
        if event["id"] == 1:
            found.append([])
        found[-1].append(event)
    return found


def double_starts(events: Iterable[Event]) -> list[Event]:
    """Attempts that were started while another one of the same service was not gone."""
    live: set[str] = set()
    found = []
    for event in events:
        if event["kind"] == "deployment" and event["state"] == "started":
            live.clear()  # the supervisor before it died, and this one begins when nothing is left
        elif event["kind"] == "spawned":
            found += [event] if event["service"] in live else []
            live.add(event["service"])
        elif event["kind"] == "transition" and event["from"] == "DRAINING":
            live.discard(event["service"])
    return found


def in_order(run: list[Event]) -> bool:
    """``behind`` starts when ``web`` serves, and when all is stopped it has ended before ``web`` begins to."""
    told = [(event["service"], event["from"], event["to"]) for event in run if event["kind"] == "transition"]
    starts = [n for n, (name, _, to) in enumerate(told) if (name, to) == ("behind", "PRELOAD")]
    serves = [n for n, (name, _, to) in enumerate(told) if (name, to) == ("web", "SERVING")]
    adopted = any("adopted (pid" in event.get("text", "") for event in run)  # each runs already, so nothing waits
    begun = adopted or not starts or (serves and serves[0] < starts[0])
    stopped = [n for n, (name, _, to) in enumerate(told) if (name, to) == ("behind", "STOPPED")]
    ends = [n for n, (name, _, to) in enumerate(told) if (name, to) == ("web", "DRAINING")]
    return bool(begun and (not stopped or not ends or stopped[-1] < ends[-1]))
