from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import measure_supervisor as measured
import pytest


def moved(at: str, source: str, target: str, service: str = "c1") -> str:
    event = {"kind": "transition", "service": service, "from": source, "to": target, "at": f"2026-01-01T00:00:{at}Z"}
    return json.dumps(event)


def test_the_wait_on_purpose_is_the_last_one_of_that_service() -> None:
    events = [
        moved("01.000", "DRAINING", "BACKOFF"),
        moved("01.500", "BACKOFF", "INIT"),
        moved("09.000", "DRAINING", "BACKOFF", service="c2"),
        moved("03.000", "DRAINING", "BACKOFF"),
        json.dumps({"kind": "log", "service": "c1", "text": "x"}),
        moved("03.250", "BACKOFF", "INIT"),
    ]
    began_s, ended_s = measured.backoff(events, "c1")
    assert ended_s - began_s == pytest.approx(0.25)
    assert measured.backoff(events, "c3") == (0.0, 0.0)


def test_readings_stand_beside_each_other() -> None:
    ours = measured.Reading("coexist", 41.6, 80.0, 20.4, 0.234, 59.6, 0)
    other = measured.Reading("circus", 4989.0, 5020.0, None, 0.02, 20.0, 8)
    head, line, *rows = measured.table([ours, other]).splitlines()
    assert head.count("|") == line.count("|") == 7
    assert rows == [
        "| coexist | 42 ms (80) | 20 ms | 0.23% | 60 MiB | 0 of 8 |",
        "| circus | 4989 ms (5020) | - | 0.02% | 20 MiB | 8 of 8 |",
    ]


def test_the_child_tells_when_it_began_and_answers(tmp_path: Path) -> None:
    (tmp_path / "born").mkdir()
    (tmp_path / "child.py").write_text(measured.CHILD)
    scene = measured.Scene(tmp_path, measured.free_ports(8))
    child = subprocess.Popen(scene.argv(0))
    try:
        measured.wait(lambda: scene.alive() == [child.pid], "the child runs")
        assert scene.born(0)[child.pid] > 0
    finally:
        child.kill()
        child.wait()
    assert scene.alive() == []


def test_processor_time_of_another_process_is_read_from_its_own_clock() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        process = [measured.psutil.Process(spinning.pid)]
        measured.wait(lambda: measured._cpu_s(process) > 0.01, "it has spun")
    finally:
        spinning.kill()
        spinning.wait()
