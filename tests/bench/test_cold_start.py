from __future__ import annotations

import errno
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
    booted, fails_at, said = [], [], []

    async def boot(stage, timeout_s, load_s, say):
        caches = stage.home.cache("tiny", "web")
        booted.append((stage.deployment.services["web"].warmup, caches, caches.exists()))
        if len(booted) in fails_at:
            raise ToolkitError("it broke")
        caches.mkdir(parents=True, exist_ok=True)
        return boots(1)[0]

    monkeypatch.setattr(cold_start, "boot", boot)

    home = Home(tmp_path / "home")

    def run(runs=2, warmup=None, fresh=False, load_s=1.0, show=lambda _: None):
        return cold_start.cold_start(
            config,
            home,
            runs=runs,
            warmup=warmup,
            fresh=fresh,
            timeout_s=None,
            load_s=load_s,
            say=said.append,
            show=show,
        )

    run.booted, run.fails_at, run.home, run.said = booted, fails_at, home, said
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


def test_boots_under_another_load_are_not_reported_together(bench):
    bench.fails_at.append(4)
    with pytest.raises(ToolkitError):
        bench(2)
    bench(2, load_s=2.0)
    assert len(bench.booted) == 4 + 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"key": "KEY"}',
        '{"key": "KEY", "boots": [1]}',
        '{"key": "KEY", "boots": {"cold": [{"seconds": 1.0, "services": [{"name": "llm"}]}]}}',
    ],
)
def test_a_damaged_file_of_boots_begins_anew(bench, text):
    bench.fails_at.append(4)
    with pytest.raises(ToolkitError):
        bench(2)
    file = bench.home.bench("tiny") / "boots.json"
    file.write_text(text.replace("KEY", json.loads(file.read_text())["key"]))
    bench(2)
    assert len(bench.booted) == 4 + 8


def test_what_cannot_be_shown_is_not_lost(bench):
    def full(_):
        raise ToolkitError("no space")

    with pytest.raises(ToolkitError, match="no space"):
        bench(1, show=full)
    shown = []
    assert bench(1, show=shown.append) == shown[0]
    assert len(bench.booted) == 4
    assert bench.said[-1] == "goes on after boot 4 of an interrupted run (--fresh begins anew)"


def test_two_benches_do_not_empty_each_others_caches(bench):
    def second(_):
        with pytest.raises(ToolkitError, match="another bench measures 'tiny' now"):
            bench(1)

    bench(1, show=second)
    assert len(bench.booted) == 4


def test_caches_of_boots_lie_where_caches_are_to_lie(tmp_path):
    assert Home(tmp_path).bench_caches("tiny") == tmp_path / "bench/tiny/caches"
    assert Home(tmp_path, tmp_path / "local").bench_caches("tiny") == tmp_path / "local/.bench/tiny"


def test_caches_that_cannot_be_emptied_are_told_since_no_boot_would_be_cold(bench, monkeypatch):
    def refused(_):
        raise PermissionError(errno.EACCES, "Permission denied", "kernel.cubin")

    monkeypatch.setattr(cold_start.shutil, "rmtree", refused)
    with pytest.raises(ToolkitError, match="cannot empty the caches of the boots: permission is denied"):
        bench(1)
    assert bench.booted == []


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
