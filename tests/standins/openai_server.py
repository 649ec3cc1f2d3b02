"""A tiny server in OpenAI's shapes that stands in for a real program; it can misbehave. Standard library only.

``STANDIN_RECORD`` names the file that gets what it was started with. ``STANDIN`` is JSON: ``answer`` (text),
``answers`` (by prompt), ``load_s``, ``early_health`` (200 while loading), ``slow_first`` (requests) with ``slow_s``,
``wrong``, ``failing`` (200 with an error inside), ``refuse_after`` and ``crash_after`` (requests), ``ignore_term``.
Of streamed answers: ``times_s`` of the first ones, then ``every_s`` in turn; ``empty_s`` of keep-alives and empty
deltas before the first word; ``compile_on`` (numbers) leaves a kernel in ``TRITON_CACHE_DIR``. ``wait_for`` (a path) to
be gone comes before everything; ``most`` prompts in one body, more is out of memory. ``needs`` a kernel (a name) of
``kernel_bytes`` that it builds when its cache has none. ``logs`` (true): a line for each request, as servers do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Standin(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, model: str, routes: dict[str, str], known: set[str] | None) -> None:
        self.how: dict[str, Any] = {"answer": " Paris.", **json.loads(os.environ.get("STANDIN", "{}"))}
        self.model, self.routes, self.known = model, routes, known
        self.loaded_at = time.monotonic() + self.how.get("load_s", 0)
        self.requests = self.streams = 0
        self.lock = threading.Lock()
        super().__init__((host, port), Handler)

    @property
    def loaded(self) -> bool:
        return time.monotonic() >= self.loaded_at

    def count(self) -> int:
        with self.lock:
            self.requests += 1
            return self.requests

    def begin_stream(self) -> float:
        """How long this streamed answer takes; what it compiles is compiled."""
        with self.lock:
            number, self.streams = self.streams, self.streams + 1
        if number + 1 in self.how.get("compile_on", []):
            folder = Path(os.environ["TRITON_CACHE_DIR"], f"KEY{number + 1}")
            folder.mkdir(parents=True)
            (folder / "kernel.cubin").write_bytes(b"")
        first, every = self.how.get("times_s", []), self.how.get("every_s", [0])
        return float(first[number] if number < len(first) else every[number % len(every)])

    def answer(self, prompt: str) -> str:
        text = self.how.get("answers", {}).get(prompt, self.how["answer"])
        return " London." if self.how.get("wrong") else text


class Handler(BaseHTTPRequestHandler):
    server: Standin
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind = self.server.routes.get(self.path)
        if kind == "health":
            self.send(200 if self.server.loaded or self.server.how.get("early_health") else 503, {})
        elif kind == "generate":
            self.send(200 if self.server.loaded and not self.server.how.get("failing") else 503, {})
        elif kind == "models":
            self.send(200, {"object": "list", "data": [{"id": self.server.model, "object": "model"}]})
        elif kind == "metrics":
            self.send(200, f"standin_requests_total {self.server.requests}\n")
        else:
            self.send(404, {"error": f"no {self.path}"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.server.routes.get(self.path) != "completions":
            self.send(404, {"error": f"no {self.path}"})
        elif not self.server.loaded:
            self.send(503, {"error": "loading"})
        elif body.get("model") != self.server.model:
            self.send(404, {"error": f"the model `{body.get('model')}` does not exist"})
        elif self.server.known is not None and set(body) - self.server.known:
            self.send(422, {"detail": f"Unexpected fields: {sorted(set(body) - self.server.known)}"})
        else:
            self.complete(body)

    def complete(self, body: dict[str, Any]) -> None:
        how, number = self.server.how, self.server.count()
        if number > how.get("crash_after", number):
            os._exit(1)
        if number > how.get("refuse_after", number):
            self.send(503, {"error": "broken"})
            return
        if number <= how.get("slow_first", 0):
            time.sleep(how.get("slow_s", 0.2))
        if how.get("failing"):
            self.send(200, {"error": {"message": "CUDA error: an illegal memory access was encountered"}})
            return
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        if len(prompts) > how.get("most", len(prompts)):
            self.send(500, {"error": {"message": "CUDA out of memory. Tried to allocate 20.00 GiB"}})
            return
        choices = [
            {"index": at, "text": self.server.answer(prompt), "finish_reason": "length"}
            for at, prompt in enumerate(prompts)
        ]
        if body.get("stream"):
            time.sleep(self.server.begin_stream())
            if "empty_s" in how:
                self.send_slowly(choices[0], how["empty_s"])
                return
            events = "".join(f"data: {json.dumps({'choices': [choice]})}\n\n" for choice in choices)
            self.send(200, events + "data: [DONE]\n\n", "text/event-stream")
        else:
            self.send(200, {"object": "text_completion", "model": self.server.model, "choices": choices})

    def send_slowly(self, choice: dict[str, Any], empty_s: float) -> None:
        """Keep-alives and empty deltas for a while, then the text."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        empty = json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": None}]})
        for _ in range(5):
            self.wfile.write(f": keep-alive\n\ndata: {empty}\n\n".encode())
            self.wfile.flush()
            time.sleep(empty_s / 5)
        self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode())
        self.close_connection = True

    def send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Quiet unless told otherwise: what matters is in the record."""
        if self.server.how.get("logs"):
            super().log_message(*args)


def record(options: dict[str, Any]) -> None:
    """Writes what the process was started with, whole."""
    if target := os.environ.get("STANDIN_RECORD"):
        told = {"argv": sys.argv, "env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "options": options}
        whole = Path(target + ".tmp")
        whole.write_text(json.dumps(told, default=str))
        whole.replace(target)


def build(kernel: str, size: int) -> None:
    """Leaves a kernel in the cache, where none is."""
    file = Path(os.environ["TRITON_CACHE_DIR"], kernel, "kernel.cubin")
    if not file.exists():
        print(f"Building extension module {kernel}...", flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\0" * size)


def serve(host: str, port: int, model: str, routes: dict[str, str], known: set[str] | None = None) -> None:
    """Answers until TERM; ``routes``: what each path is; ``known``: fields that a request may have (None: any)."""
    server = Standin(host, port, model, routes, known)
    while "wait_for" in server.how and Path(server.how["wait_for"]).exists():
        time.sleep(0.01)
    if "needs" in server.how:
        build(server.how["needs"], server.how.get("kernel_bytes", 0))
    ignores = server.how.get("ignore_term", False)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignores else lambda *_: os._exit(0))
    server.serve_forever()
