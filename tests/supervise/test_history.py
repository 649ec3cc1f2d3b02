from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.supervise.conftest import service_of, supervise, tiny
from toolkit.supervise import history
from toolkit.supervise.history import Boot

CEILING_S = 900.0


def boots(*took_s: float, environment: str = "e", cache: history.Cache = "warm") -> list[Boot]:
    return [Boot(environment, cache, {"PRELOAD": took}) for took in took_s]


def window_s(found: list[Boot], **changes: str) -> float:
    return history.window_s(found, changes.get("stage", "PRELOAD"), "e", "warm", CEILING_S)


def test_without_enough_boots_like_it_the_ceiling_stands() -> None:
    assert window_s([]) == CEILING_S
    assert window_s(boots(20, 20)) == CEILING_S
    assert window_s(boots(20, 20, 20), stage="PRIME") == CEILING_S


def test_nine_in_ten_boots_times_a_factor_between_floor_and_ceiling() -> None:
    assert window_s(boots(*range(11, 21), 20)) == history.FACTOR * 20
    assert window_s(boots(*[20.0] * 10, 400)) == history.FACTOR * 20
    assert window_s(boots(0.1, 0.1, 0.1)) == history.FLOOR_S
    assert window_s(boots(800, 800, 800)) == CEILING_S


def test_boots_of_another_environment_or_with_empty_caches_teach_nothing() -> None:
    others = [*boots(*[20.0] * 5, environment="other"), *boots(*[20.0] * 5, cache="cold")]
    assert window_s(others) == CEILING_S
    assert window_s([*others, *boots(30, 30, 30)]) == history.FACTOR * 30


@given(st.lists(st.floats(0, 1e4), max_size=20), st.floats(0.1, 1e4))
def test_a_window_is_never_over_its_ceiling(took_s: list[float], ceiling_s: float) -> None:
    found = history.window_s(boots(*took_s), "PRELOAD", "e", "warm", ceiling_s)
    assert min(ceiling_s, history.FLOOR_S) <= found <= ceiling_s


def test_the_file_keeps_the_last_boots_only(tmp_path: Path) -> None:
    file = tmp_path / "history" / "llm.json"
    for number in range(history.KEPT_BOOTS + 3):
        history.add(file, boots(float(number))[0])
    kept = history.read(file)
    assert len(kept) == history.KEPT_BOOTS
    assert (kept[0].seconds["PRELOAD"], kept[-1].seconds["PRELOAD"]) == (3.0, history.KEPT_BOOTS + 2.0)
    assert [path.name for path in file.parent.iterdir()] == ["llm.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"boots": 3}',
        '{"boots": [{"environment": "e"}]}',
        '{"boots": [{"environment": "e", "cache": "warm", "seconds": {"PRELOAD": "soon"}}]}',
        '{"boots": [{"environment": "e", "cache": "tepid", "seconds": {}}]}',
        '{"boots": [{"environment": "e", "cache": "warm", "seconds": [1]}]}',
        '{"boots": [{"environment": "e", "cache": "warm", "seconds": {"PRELOAD": NaN}}]}',
        '{"boots": [{"environment": "e", "cache": "warm", "seconds": {"PRELOAD": Infinity}}]}',
        '{"boots": [{"environment": "e", "cache": "warm", "seconds": {"PRELOAD": 1' + "0" * 400 + "}}]}",
        "[" * 100_000,
    ],
    ids=lambda text: text[:80],
)
def test_a_damaged_file_is_no_history_and_is_written_anew(tmp_path: Path, text: str) -> None:
    file = tmp_path / "llm.json"
    file.write_text(text)
    assert history.read(file) == ()
    history.add(file, boots(1.0)[0])
    assert len(history.read(file)) == 1


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "llm.json")
    assert history.read(tmp_path / "llm.json") == ()


def test_a_disk_that_refuses_it_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history.add(tmp_path / "file" / "llm.json", boots(1.0)[0])
    history.add(None, boots(1.0)[0])
    assert history.read(None) == ()


async def test_starts_are_written_down_and_shorten_the_window_of_the_next(state_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "history" / "quick.json"
    for number in range(history.MIN_BOOTS + 1):
        run = tiny("quick", history=file, fingerprint="abc", cache_dir=tmp_path / "cache" / "abc")
        document = await supervise(state_dir, run).run("ready", 30.0)
        windows = document["services"][0]["windows_s"]
        learned = number >= history.MIN_BOOTS
        assert windows == dict.fromkeys(("PRELOAD", "PRIME"), history.FLOOR_S if learned else 20.0)
    written = json.loads(file.read_text())["boots"]
    assert [set(boot["seconds"]) for boot in written] == [{"PRELOAD", "PRIME"}] * (history.MIN_BOOTS + 1)
    assert {(boot["environment"], boot["cache"]) for boot in written} == {("abc full", "cold")}


async def test_a_window_that_a_person_wrote_is_kept(state_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "quick.json"
    for took in (1.0, 1.0, 1.0):
        history.add(file, Boot(" full", "cold", {"PRELOAD": took, "PRIME": took}))
    supervisor = supervise(state_dir, tiny("quick", history=file, learns=False))
    await supervisor.run("ready", 30.0)
    assert service_of(supervisor, "quick")["windows_s"] == {"PRELOAD": 20.0, "PRIME": 20.0}


async def test_who_was_ended_by_what_was_learned_gets_the_ceiling_the_next_time(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FLOOR_S", 0.3)
    file = tmp_path / "slow.json"
    for _ in range(history.MIN_BOOTS):
        history.add(file, Boot(" full", "cold", {"PRELOAD": 0.1, "PRIME": 0.1}))
    supervisor = supervise(state_dir, tiny("slow", "1:hang", history=file))
    document = await supervisor.run("ready", 30.0)
    (found,) = document["services"]
    assert (found["attempt"], found["windows_s"]["PRELOAD"]) == (2, 20.0)
    assert found["last_failure"]["summary"].startswith("no progress for")


async def test_starts_with_less_warm_up_teach_nothing_of_the_whole(state_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "quick.json"
    for _ in range(history.MIN_BOOTS):
        history.add(file, Boot(" none", "cold", {"PRELOAD": 0.1, "PRIME": 0.1}))
    supervisor = supervise(state_dir, tiny("quick", history=file))
    await supervisor.run("ready", 30.0)
    assert service_of(supervisor, "quick")["windows_s"] == {"PRELOAD": 20.0, "PRIME": 20.0}
