from __future__ import annotations

from toolkit.runtimes.base import HttpProbe, Launch, Probes
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


def test_what_stays_is_started_next_time_as_it_was_placed_and_warmed_as_it_is_wanted_now() -> None:
    def launch(argv: str, window_s: float, warmup: str, stage: HttpProbe | None) -> Launch:
        probes = Probes(None, stage=stage, warmup=(HttpProbe(warmup),))
        return Launch((argv,), {}, probes, preload_window_s=window_s)

    for stage, path in ((None, "/new"), (HttpProbe("/v1/stage"), "/old")):
        before = ServiceRun("a", "command", lambda _, on=stage: launch("placed", 30.0, "/old", on), 1)
        wanted = ServiceRun("a", "command", lambda _, on=stage: launch("elsewhere", 90.0, "/new", on), 2, quiet_s=5.0)
        run = changed(Roster.of([before]), wanted).runs["a"]
        found = run.launch(1)
        assert (found.argv, found.preload_window_s, run.quiet_s) == (("placed",), 90.0, 5.0)
        assert [probe.path for probe in found.probes.warmup] == [path]


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
