from __future__ import annotations

from toolkit.runtimes.base import Launch
from toolkit.supervise.roster import Roster
from toolkit.supervise.service import ServiceRun


def no_launch(_: int) -> Launch:
    raise AssertionError("nothing is launched here")


def run(name: str, port: int = 1, model: str = "a", **keys: object) -> ServiceRun:
    spec = {"model": model, **{key: str(value) for key, value in keys.items()}}
    return ServiceRun(name, "command", no_launch, port, spec=spec, **keys)  # type: ignore[arg-type]


def changed(roster: Roster, *services: ServiceRun) -> Roster:
    return roster.changed(services, roster.compare(services, ()))


def test_what_stays_keeps_its_place_and_takes_what_only_its_supervisor_looks_at() -> None:
    after = changed(Roster.of([run("a", 1), run("b", 2)]), run("a", 11, after=("b",)), run("b", 12, model="other"))
    assert (after.runs["a"].port, after.runs["a"].after, after.runs["b"].port) == (1, ("b",), 12)


def test_what_is_removed_ends_without_being_waited_for() -> None:
    after = changed(Roster.of([run("a"), run("b", after=("a",), required=True)]), run("a"))
    assert list(after.runs) == ["a", "b"]
    assert after.leaving == {"b"}
    (gate,) = (gate for gate in after.gates if gate.name == "b")
    assert (gate.after, gate.required) == ((), False)
    ended = after.without({"b"})
    assert (list(ended.runs), ended.leaving, ended.gone) == (["a"], frozenset(), {"b"})


def test_what_is_removed_and_wanted_again_begins_anew() -> None:
    leaving = changed(Roster.of([run("a"), run("b")]), run("a"))
    found = leaving.compare([run("a"), run("b", 9)], ())
    assert found.added == ("b",)
    again = leaving.changed([run("a"), run("b", 9)], found)
    assert (again.leaving, again.runs["b"].port) == (frozenset(), 9)
    back = changed(leaving.without({"b"}), run("a"), run("b", 9))
    assert back.gone == frozenset()
