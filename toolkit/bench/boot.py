"""One boot of a deployment, measured from its start to the end of a short load; then nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toolkit import workflow
from toolkit.assemble import launches
from toolkit.assemble.launches import Stage
from toolkit.bench import load, measures
from toolkit.bench.sampling import Samples, sample
from toolkit.errors import ToolkitError
from toolkit.host import gpu_load
from toolkit.supervise.clock import SystemClock
from toolkit.supervise.state import StateFolder
from toolkit.supervise.supervisor import Supervisor
from toolkit.units import MIB, format_duration
from toolkit.warm import Target, session

Status = Mapping[str, Any]
_GOES_ON = "What was measured until then is kept: the same call goes on behind it."


async def boot(stage: Stage, timeout_s: float | None, load_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    """What was measured, as JSON: seconds to READY, and of each service stages, first tokens, memory and load.

    Raises: NotReadyInTimeError, ToolkitError as ``up`` does, and when a service did not serve to the end.
    """
    clock, samples, logs = SystemClock(), Samples(), StateFolder(stage.home.state(stage.deployment.name)).logs
    began_s = clock.now()
    with gpu_load.reader() as read_gpus:
        async with workflow.started(stage, lambda _: None, follows=False) as supervisor:
            with _sampled(supervisor, read_gpus, samples):
                await supervisor.wait_ready(timeout_s)
                seconds, ready = clock.now() - began_s, supervisor.snapshot()
                check_served(ready, ready, logs)
                say(f"  ready after {format_duration(seconds)}")
                loads = await _loads(stage, clock, load_s, say)
            ended = supervisor.snapshot()
    check_served(ready, ended, logs)
    late = {each["name"]: each["late_compiles"] for each in ended["services"]}
    services = [_service(each, samples, loads.get(each["name"]), late) for each in ready["services"]]
    return {"seconds": seconds, "services": services}


def check_served(ready: Status, ended: Status, logs: Path) -> None:
    """Raises ToolkitError when it was stopped before it was ready, or a service ended while it was loaded.

    ``ready`` and ``ended``: the status when it was ready, and after the load; ``logs``: where logs of services are.
    """
    if not ready["ready"]:
        what = f"deployment '{ready['deployment']}' was stopped before it was ready"
        raise ToolkitError(what, str(logs), _GOES_ON, code="stopped")
    now = {each["name"]: each for each in ended["services"]}
    for each in ready["services"]:
        after = now.get(each["name"], {})
        if each["state"] == "SERVING" and (after.get("state"), after.get("attempt")) != ("SERVING", each["attempt"]):
            failure = after.get("last_failure")
            why = f": {failure['summary']}" if failure and failure != each["last_failure"] else ""
            what = f"'{each['name']}' did not serve to the end of its load{why}"
            raise ToolkitError(what, str(logs / f"{each['name']}.log"), _GOES_ON, code="not_serving")


@contextlib.contextmanager
def _sampled(supervisor: Supervisor, read_gpus: Callable[[], Mapping[str, int]], samples: Samples) -> Iterator[None]:
    task = asyncio.create_task(sample(supervisor.snapshot, read_gpus, samples))
    try:
        yield
    finally:
        task.cancel()


async def _loads(stage: Stage, clock: SystemClock, load_s: float, say: Callable[[str], None]) -> dict[str, load.Load]:
    """One service after another, so that none is measured beside the load of its neighbour."""
    found = {}
    async with session() as http:
        for planned in stage.plan.services:
            say(f"  load on {planned.name}")
            probes = launches.launch(stage, planned.name, launches.OPENS_NOTHING).probes
            target = Target(f"http://127.0.0.1:{planned.port}", probes)
            if (came := await load.run(target, http, clock, load_s)) is not None:
                found[planned.name] = came
    return found


def _service(
    status: Status, samples: Samples, came: load.Load | None, late: Mapping[str, int | None]
) -> dict[str, Any]:
    name = status["name"]
    prime = samples.resident[name, "PRIME"]
    climbs = [measures.climb_per_s(samples.gpu[gpu["uuid"]]) for gpu in status["gpus"]]
    return {
        "name": name,
        "attempts": status["attempt"],
        "gpus": len(status["gpus"]),
        "stages": [stage for stage in status["stages"] if stage["state"] != "SERVING"],
        "first_token_ms": status["first_token_ms"],
        "proof_ms": status["proof"]["first_token_ms"] if status["proof"] else [],
        "late_compiles": late[name],
        "canary_ok": status["canary"]["ok"],
        "resident_mib": round(max((each.value for each in prime), default=0) / MIB) or None,
        "resident_jitter": measures.jitter(prime),
        "gpu_climb_percent_per_s": max((climb for climb in climbs if climb is not None), default=None),
        "load": _load(came) if came else None,
    }


def _load(came: load.Load) -> dict[str, Any]:
    found = measures.rates(came.arrivals_s, came.seconds)
    return {
        "unit": came.unit,
        "per_s": measures.steady_rate(found),
        "to_80_percent_s": measures.time_to_nearly(found),
        "failed": came.failed,
        "refused": came.refused,
    }
