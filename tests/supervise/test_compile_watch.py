"""Compiles as they are seen from outside: files, children, lines, counters; and what cannot be seen."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.supervise.conftest import service_of, state_of, tiny, tiny_probes, until
from toolkit.runtimes.base import HttpProbe
from toolkit.supervise import compile_watch
from toolkit.supervise.compile_watch import CacheFolder, Compilers, CompileWatch, LogLines, folders
from toolkit.supervise.logs import LogView
from toolkit.warm import Target
from toolkit.warm.compiles import Compile, since


def kernel(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("ttir", "cubin", "json"):
        (folder / f"{name}.{suffix}").write_text("x")


def settle(folder: Path) -> None:
    """Dates everything back, as if some time had passed."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() - 60,) * 2)


def test_a_kernel_counts_once_however_many_files_it_has(tmp_path: Path) -> None:
    watched = CacheFolder(tmp_path / "triton")
    assert watched.count() == 0
    kernel(tmp_path / "triton" / "ABC", "add_kernel")
    assert (watched.count(), watched.newest) == (1, "ABC/add_kernel")
    kernel(tmp_path / "triton" / "ABC", "add_kernel")
    assert watched.count() == 1


def test_locks_half_written_files_and_what_python_makes_of_them_are_no_kernels(tmp_path: Path) -> None:
    for name in ("x.lock", "lock", ".hidden", "tmp.pid_1", "kernel.cubin.tmp", "__grp__add.json", "build.log"):
        (tmp_path / name).write_text("x")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "c1.pyc").write_text("x")
    assert CacheFolder(tmp_path).count() == 0


def test_a_folder_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(tmp_path / "A", "one")
    settle(tmp_path)
    watched = CacheFolder(tmp_path)
    watched.count()
    read: list[str] = []
    real = os.scandir
    monkeypatch.setattr(compile_watch.os, "scandir", lambda path: (read.append(str(path)), real(path))[1])
    assert (watched.count(), read) == (1, [])
    kernel(tmp_path / "A", "two")
    assert (watched.count(), read) == (2, [str(tmp_path / "A")])


def test_a_removed_kernel_that_comes_again_is_no_new_one(tmp_path: Path) -> None:
    watched = CacheFolder(tmp_path)
    kernel(tmp_path, "one")
    assert watched.count() == 1
    for path in tmp_path.iterdir():
        path.unlink()
    assert watched.count() == 1


def test_a_cache_with_too_many_folders_is_unobservable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_watch, "MAX_FOLDERS", 3)
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    assert CacheFolder(tmp_path).count() is None


def test_only_caches_of_its_own_are_watched(tmp_path: Path) -> None:
    env = {"TRITON_CACHE_DIR": str(tmp_path / "own" / "triton"), "CUDA_CACHE_PATH": "/shared/cuda", "PATH": "/bin"}
    found = folders(env, tmp_path / "own")
    assert found["cuda"] is None
    assert found["triton"] == CacheFolder(tmp_path / "own" / "triton")
    assert set(found) == {"cuda", "triton"}


def fake_compiler(folder: Path, name: str) -> Path:
    """A program whose process is called as a compiler is."""
    target = folder / name
    target.symlink_to(sys.executable)
    return target


def test_a_compiler_below_the_tree_is_seen_once(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.argv[1], '-c', 'import time; time.sleep(60)'])"
    argv = [sys.executable, "-I", "-S", "-c", code, str(fake_compiler(tmp_path, "ptxas"))]
    with subprocess.Popen(argv, start_new_session=True) as process:
        seen = Compilers(type("Tree", (), {"pid": process.pid, "beside": ()})())  # type: ignore[arg-type]
        try:
            deadline = time.monotonic() + 20
            while not seen.count() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert (seen.count(), seen.newest, seen.running) == (1, "ptxas", "ptxas")
        finally:
            os.killpg(process.pid, 9)
    assert (seen.count(), seen.running) == (1, None)


def test_lines_that_tell_of_compiling_are_counted_from_the_attempts_beginning(tmp_path: Path) -> None:
    log = tmp_path / "llm.log"
    log.write_text("Building extension module old...\n")
    lines = LogLines(LogView(log, log.stat().st_size))
    assert lines.count() == 0
    with log.open("a") as file:
        file.write("loaded\nBuilding extension module new...\nBuilding extension mod")
    assert lines.count() == 1
    with log.open("a") as file:
        file.write("ule half...\n")
    assert (lines.count(), lines.newest) == (2, "Building extension module")


async def test_what_compiles_inside_a_process_on_a_gpu_is_unobservable(tmp_path: Path) -> None:
    tree: Any = type("Tree", (), {"pid": os.getpid(), "beside": ()})()
    async with aiohttp.ClientSession() as http:
        target = Target("http://127.0.0.1:1", tiny_probes())
        for on_gpu in (True, False):
            watch = CompileWatch.of(
                target, http, tree, LogView(tmp_path / "none.log", 0), env={}, cache_dir=None, on_gpu=on_gpu
            )
            channels = (await watch.look()).document()
            assert channels.get("nvrtc") == ("unobservable" if on_gpu else None)
            assert channels["log"] == 0
            assert "counter" not in channels


LATE = """
import http.server, os, sys
port, cache = int(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/compile":
            os.makedirs(cache + "/ABC", exist_ok=True)
            open(cache + "/ABC/late_kernel.cubin", "w").close()
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def late_compiler(tmp_path: Path, **changes: Any) -> Any:
    """A service whose program leaves a kernel in its cache when it is told to."""
    run = tiny("late", cache_dir=tmp_path / "cache", **changes)
    cache = str(tmp_path / "cache" / "triton")

    def launch(attempt: int) -> Any:
        made = original(attempt)
        argv = (sys.executable, "-I", "-c", LATE, str(run.port), cache)
        return type(made)(argv, {**made.env, "TRITON_CACHE_DIR": cache}, made.probes, preload_window_s=20.0)

    original = run.launch
    object.__setattr__(run, "launch", launch)
    return run


async def test_a_kernel_after_ready_is_an_event_with_its_key_and_a_metric(running: Any, tmp_path: Path) -> None:
    run = late_compiler(tmp_path)
    supervisor = await running(run, watch_s=0.05)
    await supervisor.wait_ready(30.0)
    assert service_of(supervisor, "late")["late_compiles"] == 0
    await asyncio.to_thread(_get, run.port, "/compile")
    await until(lambda: service_of(supervisor, "late")["late_compiles"])
    assert state_of(supervisor, "late") == "SERVING"
    late = {"channel": "triton", "key": "ABC/late_kernel", "count": 1}
    assert service_of(supervisor, "late")["late_compiled"] == [late]
    events = [each for each in supervisor._journal.recent if each["kind"] == "late_compile"]
    assert [{name: event[name] for name in late} for event in events] == [late]
    assert b'coexist_late_compiled_total{channel="triton",service="late"} 1.0' in supervisor.metrics()


async def test_with_drain_readiness_is_withdrawn_and_a_new_attempt_begins(running: Any, tmp_path: Path) -> None:
    run = late_compiler(tmp_path, late_compile="drain")
    supervisor = await running(run, watch_s=0.05)
    await supervisor.wait_ready(30.0)
    await asyncio.to_thread(_get, run.port, "/compile")
    await until(lambda: service_of(supervisor, "late")["attempt"] == 2)
    await until(lambda: state_of(supervisor, "late") == "SERVING")
    drained = [e for e in supervisor._journal.recent if e["kind"] == "transition" and e["to"] == "DRAINING"]
    why = "compiled after READY (1 in all): triton: 1 (ABC/late_kernel)"
    assert drained[0]["reason"] == why
    failure = service_of(supervisor, "late")["last_failure"]
    assert (failure["summary"], failure["class"], failure["culprit"]) == (why, "late_compile", "ABC/late_kernel")
    assert (failure["attempt"], failure["state"]) == (1, "SERVING")
    assert failure["at"] <= drained[0]["at"]


def _get(port: int, path: str) -> None:
    import urllib.request  # noqa: PLC0415

    urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).read()


async def test_a_built_in_servers_compiles_are_named_by_its_libraries_own_keys(tmp_path: Path) -> None:
    compiled: list[str] = []

    async def stage(_: web.Request) -> web.Response:
        return web.json_response({"stage": "serving", "compile_events": len(compiled)})

    async def keys(_: web.Request) -> web.Response:
        return web.json_response({"keys": [], "done": [], "compiled": compiled})

    app = web.Application()
    app.add_routes([web.get("/v1/stage", stage), web.get("/v1/warmup/keys", keys)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    tree: Any = type("Tree", (), {"pid": os.getpid(), "beside": ()})()
    target = Target(f"http://127.0.0.1:{runner.addresses[0][1]}", tiny_probes(stage=HttpProbe("/v1/stage")))
    log = LogView(tmp_path / "none.log", 0)
    async with aiohttp.ClientSession() as http:
        watch = CompileWatch.of(target, http, tree, log, env={}, cache_dir=None, on_gpu=False)
        compiled.append("_flash_attn_fwd.compile_cache: (64, 'bf16')")
        before = await watch.look()
        compiled.append("_flash_attn_fwd.compile_cache: (128, 'bf16')")
        assert since(before, await watch.look()) == (Compile("counter", 1, compiled[-1]),)
        await runner.cleanup()
        assert (await watch.look()).counts["counter"] is None
