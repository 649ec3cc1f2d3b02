from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.ports import free_port
from toolkit.config.models import Restart
from toolkit.processes import environment, has_cookie, pids
from toolkit.runtimes.base import CanaryCheck, Generation, HttpProbe, Launch, Probes
from toolkit.supervise.service import ServiceRun
from toolkit.supervise.supervisor import Supervisor

TINY_SERVER = Path(__file__).with_name("tiny_server.py")
# Two runs of these tests don't see each other, nor do two processes of one run.
RUN = os.environ.setdefault("COEXIST_TEST_RUN", str(os.getpid())) + os.environ.get("PYTEST_XDIST_WORKER", "")
HELLO = HttpProbe("/hello", expect_text="hello")


def tiny_probes(**changes: Any) -> Probes:
    facts: dict[str, Any] = {
        "loaded": HttpProbe("/health", timeout_s=1.0),
        "live": HttpProbe("/health", timeout_s=1.0),
        "warmup": (HELLO,),
        "canary": CanaryCheck(request=HELLO),
        "generation": Generation("request", "/hello", request=HELLO),
    }
    return Probes(**{**facts, **changes})


def tiny(
    name: str,
    *flags: str,
    port: int | None = None,
    probes: Probes | None = None,
    window_s: float = 20.0,
    **changes: Any,
) -> ServiceRun:
    """A tiny server as a service; ``flags`` may depend on the attempt: ``2:exit-early`` counts for attempt 2 only."""
    port = port or free_port()

    def launch(attempt: int) -> Launch:
        of_this = [flag.partition(":")[2] if ":" in flag else flag for flag in flags if _counts(flag, attempt)]
        argv = (sys.executable, "-I", "-S", str(TINY_SERVER), str(port), *of_this)
        return Launch(argv, {"WHO": mark(name)}, probes or tiny_probes(), preload_window_s=window_s)

    facts: dict[str, Any] = {"grace_s": 3.0, "backoff_first_s": 0.01, "restart": Restart(max_restarts=2, window="60s")}
    return ServiceRun(name, "command", launch, port, **{**facts, **changes})


def mark(who: str) -> str:
    """What the environment of a process of this test run holds as ``WHO``."""
    return f"{who}-{RUN}"


def pytest_sessionfinish() -> None:
    """What a failed test left running ends with the run."""
    for pid in pids():
        if any(each.startswith(b"WHO=") and each.endswith(f"-{RUN}".encode()) for each in environment(pid) or ()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _counts(flag: str, attempt: int) -> bool:
    number, colon, _ = flag.partition(":")
    return not colon or int(number) == attempt


def unpinned(argv: Any, cpus: Any, memory_policy: Any) -> Any:
    return argv


def supervise(state_dir: Path, *runs: ServiceRun, **changes: Any) -> Supervisor:
    return Supervisor("tiny", runs, state_dir, **{"wrap": unpinned, "jitter": lambda: 0.0, **changes})


def answer(port: int, path: str) -> int:
    """The HTTP status, 0 when the connection broke."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


async def ask(port: int, path: str) -> int:
    return await asyncio.to_thread(answer, port, path)


async def until(holds: Callable[[], Any], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


def processes_of(state: dict[str, Any]) -> list[int]:
    return [service["pid"] for service in state["services"] if service["pid"]]


def carriers(who: str) -> list[int]:
    """Processes of the service named ``who``, wherever they went."""
    return [pid for pid in pids() if pid != os.getpid() and has_cookie(pid, f"WHO={mark(who)}")]


def state_of(supervisor: Supervisor, name: str) -> str:
    return str(service_of(supervisor, name)["state"])


def service_of(supervisor: Supervisor, name: str) -> dict[str, Any]:
    return next(each for each in supervisor.snapshot()["services"] if each["name"] == name)


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts a supervisor of these services, and closes it after the test."""
    started: list[Supervisor] = []

    async def start(*runs: ServiceRun, **changes: Any) -> Supervisor:
        supervisor = supervise(tmp_path / "state", *runs, **changes)
        await supervisor.start()
        started.append(supervisor)
        return supervisor

    yield start
    for supervisor in started:
        await supervisor.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"
