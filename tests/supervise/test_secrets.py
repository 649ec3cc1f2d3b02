"""A secret in ``env:`` is planted, and nothing that coexist writes or answers holds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.supervise.conftest import RUN, service_of, state_of, tiny, until
from toolkit.runtimes.base import Launch
from toolkit.supervise import client, failures
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.service import ServiceRun
from toolkit.warm.model import CanaryResult

Start = Callable[..., Any]
PLANTED = f"planted-{RUN}"  # two runs of these tests don't see each other
SECRET, TOKEN = f"{PLANTED}-hunter22", f"{PLANTED}-attempt-token"


def with_secrets(run: ServiceRun) -> ServiceRun:
    def launch(attempt: int) -> Launch:
        plain = run.launch(attempt)
        return replace(plain, env={**plain.env, "MY_SECRET": SECRET, "COEXIST_TOKEN": TOKEN})

    return replace(run, launch=launch)


def written(folder: Path) -> dict[str, bytes]:
    """Every file that coexist wrote itself; a log is its program's."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".log":
            with contextlib.suppress(FileNotFoundError):  # half-written a moment ago, published by now
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found


async def answered(address: str) -> dict[str, bytes]:
    async with aiohttp.ClientSession() as http:
        found = {}
        for path in ("/livez", "/readyz", "/readyz/told", "/v1/services", "/metrics"):
            async with http.get(address + path) as response:
                found[path] = await response.read()
        async with http.get(f"{address}/events", headers={"Last-Event-ID": "0"}) as response:
            found["/events"] = await response.content.read(1 << 20)
        return found


def holders(found: dict[str, bytes]) -> list[str]:
    return [name for name, text in found.items() if PLANTED.encode() in text]


async def test_a_program_that_tells_its_secrets_is_quoted_without_them(running: Start, state_dir: Path) -> None:
    supervisor = await running(with_secrets(tiny("told", "tell-secrets")))
    await until(lambda: state_of(supervisor, "told") == "FAILED")
    failure = service_of(supervisor, "told")["last_failure"]
    assert failure["line"] == "RuntimeError: refused: ***"
    assert "refused: ***" in failure["summary"]
    assert PLANTED.encode() in (state_dir / "logs" / "told.log").read_bytes()
    await until(lambda: b"refused: ***" in (state_dir / "status.json").read_bytes())
    assert holders(written(state_dir)) == []
    assert holders(await answered(supervisor.address)) == []
    document = await asyncio.to_thread(client.status, state_dir)
    assert PLANTED not in str(document)


async def test_nothing_that_is_written_or_answered_while_it_serves_holds_a_secret(
    running: Start, state_dir: Path
) -> None:
    supervisor = await running(with_secrets(tiny("told")))
    await supervisor.wait_ready(20.0)
    files = written(state_dir)
    assert {"status.json", "events.jsonl", "supervisor.json"} <= set(files)
    assert holders(files) == []
    assert holders(await answered(supervisor.address)) == []


async def test_what_runs_beside_the_service_gets_none_of_them(running: Start) -> None:
    supervisor = await running(with_secrets(tiny("told")))
    await supervisor.wait_ready(20.0)
    ours = service_of(supervisor, "told")["pid"]
    others = [pid for pid in Path("/proc").iterdir() if pid.name.isdigit() and pid.name != str(ours)]
    assert not [pid for pid in others if PLANTED.encode() in _of(pid, "environ") + _of(pid, "cmdline")]
    assert PLANTED.encode() not in _of(Path(f"/proc/{ours}"), "cmdline")


def _of(process: Path, name: str) -> bytes:
    try:
        return (process / name).read_bytes()
    except OSError:
        return b""


def test_every_word_of_a_failure_is_masked() -> None:
    said = Failure(
        f"a {SECRET}", "stop", "exit", SECRET, f"line {SECRET}", f"do {SECRET}", CanaryResult(False, "x", SECRET)
    )
    shown = failures.without(said, (SECRET,))
    assert PLANTED not in str(shown)
    assert (shown.verdict, shown.kind, shown.summary) == ("stop", "exit", "a ***")
    assert failures.without(Failure("as it is"), ()) == Failure("as it is")
