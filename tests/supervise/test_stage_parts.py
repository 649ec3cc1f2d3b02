from __future__ import annotations

from typing import Any

from tests.supervise.conftest import service_of, tiny
from toolkit.supervise import stage_parts
from toolkit.supervise.lifecycle import Instance, State
from toolkit.supervise.stage_parts import Part
from toolkit.units import GIB
from toolkit.warm.model import PARTS, Memory, StageReport


def test_what_no_part_accounts_for_on_a_gpu_is_the_contexts() -> None:
    report = StageReport({}, gpu_bytes={"weights": 6, "kv_cache": 3})
    assert stage_parts.with_memory(report, Memory(None, 10)).gpu_bytes == {
        "weights": 6,
        "kv_cache": 3,
        "context": 1,
        "all": 10,
    }


def test_a_program_tells_its_parts_in_its_log() -> None:
    lines = ["INFO Loading weights took 0.5 seconds", "INFO Model loading took 2.0 GiB and 0.9 seconds"]
    report = stage_parts.with_log(StageReport(dict.fromkeys(PARTS)), lines)
    found = stage_parts.of(Instance("llm", report=report))
    assert found == (Part(State.PRELOAD, "weights", 0.5, None, 2 * GIB),)


async def test_parts_are_in_events_metrics_and_status(running: Any) -> None:
    supervisor = await running(tiny("web"))
    await supervisor.wait_ready(30.0)
    told = [(each["stage"], each["part"]) for each in supervisor._journal.recent if each["kind"] == "part"]
    assert told == [("PRELOAD", "all"), ("PRIME", "compile"), ("PRIME", "canary"), ("PRIME", "proof")]
    page = supervisor.metrics().decode()
    assert 'coexist_part_seconds{part="proof",service="web",stage="PRIME"}' in page
    assert 'coexist_part_bytes{part="all",service="web",stage="PRELOAD",where="host"}' in page
    preload, prime = service_of(supervisor, "web")["stages"][1:3]
    assert preload["memory_bytes"]["all"]["host"] > 0
    assert preload["memory_bytes"]["all"]["gpu"] is None
    assert set(prime["parts"]) >= {"compile", "canary", "proof"}
