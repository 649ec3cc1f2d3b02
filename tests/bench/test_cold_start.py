from __future__ import annotations

import json

import pytest

from tests.bench.test_report import boots
from toolkit.bench import cold_start
from toolkit.bench.cold_start import conditions
from toolkit.errors import ToolkitError
from toolkit.home import Home

CONFIG = {
    "version": 1,
    "name": "tiny",
    "services": {"web": {"runtime": "command", "argv": ["true"], "ready": {"path": "/"}, "warmup": "single"}},
}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs the bench with boots that are made up; ``booted`` holds mode, cache folder and whether it was filled."""
    monkeypatch.setenv("COEXIST_RUNTIME_DIR", str(tmp_path))
    config = tmp_path / "tiny.yaml"
    config.write_text(json.dumps(CONFIG))
    booted, fails_at = [], []

    async def boot(stage, timeout_s, load_s, say):
        caches = stage.home.cache("tiny", "web")
        booted.append((stage.deployment.services["web"].warmup, caches, caches.exists()))
        if len(booted) in fails_at:
            raise ToolkitError("it broke")
        caches.mkdir(parents=True, exist_ok=True)
        return boots(1)[0]

    monkeypatch.setattr(cold_start, "boot", boot)

    def run(runs=2, warmup=None, fresh=False):
        home = Home(tmp_path / "home")
        return cold_start.cold_start(
            config, home, runs=runs, warmup=warmup, fresh=fresh, timeout_s=None, load_s=1.0, say=lambda _: None
        )

    run.booted, run.fails_at, run.home = booted, fails_at, Home(tmp_path / "home")
    return run


def test_cold_boots_find_empty_caches_and_the_others_filled_ones(bench):
    bench(2)
    assert [filled for _, _, filled in bench.booted] == [False, False, True, True, True, True, True, True]


def test_the_whole_warm_up_stands_beside_none_and_a_single_request(bench):
    found = bench(2)
    assert [mode for mode, _, _ in bench.booted] == ["full"] * 4 + ["none"] * 2 + ["single"] * 2
    assert {row["warmup"] for row in found["without_warmup"]} == {"none", "single", "full"}


def test_one_mode_alone_is_booted_as_often_as_asked():
    assert conditions(20, "single") == {"cold": 3, "single": 20}
    assert conditions(20, None) == {"cold": 3, "full": 20, "none": 5, "single": 5}


def test_an_interrupted_bench_goes_on_where_it_was(bench):
    bench.fails_at.append(4)
    with pytest.raises(ToolkitError):
        bench(2)
    found = bench(2)
    assert len(bench.booted) == 8 + 1
    assert [each["boots"] for each in found["conditions"]] == [2, 2, 2, 2]


def test_a_changed_question_begins_anew(bench):
    bench.fails_at.append(4)
    with pytest.raises(ToolkitError):
        bench(2)
    bench.booted.clear()
    bench.fails_at.clear()
    bench(1)
    assert len(bench.booted) == 4


def test_fresh_begins_anew(bench):
    bench.fails_at.append(4)
    with pytest.raises(ToolkitError):
        bench(2)
    bench.booted.clear()
    bench.fails_at.clear()
    bench(2, fresh=True)
    assert len(bench.booted) == 8


def test_a_finished_bench_leaves_no_caches_and_is_measured_again(bench):
    bench(1)
    bench(1)
    assert len(bench.booted) == 8
    assert list(bench.home.bench("tiny").iterdir()) == []
