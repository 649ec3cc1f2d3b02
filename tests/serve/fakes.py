"""A tokenizer of single bytes and an engine that answers with a scripted text, for tests of the servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from aiohttp import ClientSession, web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.serve.small_models import write_bert
from toolkit.serve import engine_server, frontend
from toolkit.serve import web as serve_web
from toolkit.serve.status import Status
from toolkit.serve.tokenizer import _byte_of_character
from toolkit.serve.worker import Worker

EOS = 256
VOCAB_SIZE = 257
TOKEN = "a-token-of-this-attempt"
TEMPLATE = """
{%- for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{{- m.role }}:{{ m.content }};
{%- endfor %}"""


def write_tokenizer(folder: Path) -> None:
    """Nothing; a byte-level tokenizer without merges: id n is the byte n, and 256 ends a text."""
    vocab = dict(_byte_of_character())
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "chat_template": TEMPLATE}))


def echo(prompt: bytes) -> bytes:
    return prompt


class FakeEngine:
    """Answers a prompt with ``reply(prompt)`` and the end token. ``gate`` closed: decode waits."""

    def __init__(self, reply: Callable[[bytes], bytes] = echo, *, max_batch_size: int = 2, limit: int = 64) -> None:
        self.max_batch_size = max_batch_size
        self.max_input_len = limit
        self.max_seq_len = 2 * limit
        self.vocab_size = VOCAB_SIZE
        self.eos_token_ids = (EOS,)
        self.bytes_read = 4096
        self.eager_steps: dict[str, int] = {}
        self.block_tokens, self.stored_blocks, self.cache_blocks = 16, 0, 8
        self.piece_tokens = limit
        self.info: Mapping[str, Any] = {"fmha": "enable"}
        self.reply = reply
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[int] = []
        self.pieces: list[int] = []
        self.kept: list[bool] = []
        self.prompts: dict[int, bytes] = {}
        self.ran: list[str] = []
        self.in_slots: dict[int, list[int]] = {}
        self.fail_on: bytes | None = None

    def length(self, slot: int) -> int:
        return 0

    def wipe(self, slot: int) -> None:
        """Nothing: no slot looks at what another request left."""

    def load_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        raise AssertionError("nothing is stored")

    def save_blocks(self, slot: int, placed: Sequence[tuple[int, int]]) -> None:
        raise AssertionError("nothing is stored")

    def place(self, slot: int, token_ids: Sequence[int]) -> int:
        return 0

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> torch.Tensor:
        assert start or slot not in self.in_slots, "the slot is taken"
        self.pieces.append(len(token_ids))
        prompt = self.prompts[slot] = self.prompts.get(slot, b"")[:start] + bytes(token % EOS for token in token_ids)
        self.in_slots[slot] = [*self.reply(prompt), EOS]
        if self.fail_on is not None and self.fail_on in prompt:
            raise RuntimeError("scripted failure")
        return self._next(slot)

    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        assert self.gate.wait(30)
        self.batches.append(len(slots))
        return torch.stack([self._next(slot) for slot in slots])

    def release(self, slot: int, *, keep: bool = True) -> None:
        self.kept.append(keep)
        del self.in_slots[slot]

    def shapes(self, mode: str) -> list[str]:
        return ["prefill", "decode_1", "decode_2"] if mode == "full" else ["prefill"]

    def run_shape(self, key: str) -> None:
        assert not self.in_slots, "a warm-up shape ran beside requests"
        self.ran.append(key)

    def _next(self, slot: int) -> torch.Tensor:
        script = self.in_slots[slot]
        logits = torch.zeros(VOCAB_SIZE)
        logits[script.pop(0) if script else EOS] = 20.0
        return logits


class Client:
    """Short-hands for requests to one server."""

    def __init__(self, session: ClientSession, server: serve_web.Server, url: str) -> None:
        self.session = session
        self.server = server
        self.url = url
        self.runner: web.AppRunner | None = None
        self.token = {serve_web.TOKEN_HEADER: TOKEN}

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.session.get(path, headers=headers) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        async with self.session.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def register(self) -> None:
        assert (await self.post("/v1/register", headers=self.token))[0] == 200

    async def loaded(self) -> None:
        while self.server.status.stage == "preload":
            await asyncio.sleep(0.005)

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The documents of a stream; the end mark is checked and left out."""
        async with self.session.post(path, json={**body, "stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            lines = [line[len("data: ") :] for line in (await answer.text()).split("\n\n") if line]
        assert lines.pop() == "[DONE]"
        return [json.loads(line) for line in lines]


@contextlib.asynccontextmanager
async def serving(server: serve_web.Server, worker: Worker, *, register: bool = True) -> AsyncIterator[Client]:
    """A client of a server that runs in this process, on a free port of the loopback."""
    runner = web.AppRunner(server.app(), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    worker.start()
    try:
        url = f"http://{host}:{port}"
        async with ClientSession(url) as session:
            client = Client(session, server, url)
            client.runner = runner
            if register:
                await client.loaded()
                await client.register()
            yield client
    finally:
        await runner.cleanup()
        worker.stop(10)


@contextlib.asynccontextmanager
async def engine_serving(
    engine: FakeEngine,
    folder: Path,
    *,
    max_queue: int = 8,
    register: bool = True,
    load_gate: threading.Event | None = None,
) -> AsyncIterator[Client]:
    """A client of an engine server over a fake engine; ``load_gate`` closed: loading waits."""
    write_tokenizer(folder)
    status = Status()
    backend = engine_server.EngineBackend("fake", max_queue, status)
    options = SimpleNamespace(device="cpu", memory_fraction=None, memory_bytes=None, engine_dir=folder)

    def loader(_: Path, device: str, on_part: Callable[[str, float], None]) -> FakeEngine:
        assert load_gate is None or load_gate.wait(30)
        on_part("weights", 0.25)
        return engine

    worker = Worker(lambda: engine_server.load(backend, options, status, loader, worker.notify), lambda _: None)
    server = serve_web.Server("fake", status, backend=backend, worker=worker, metrics=backend.metrics)
    async with serving(server, worker, register=register) as client:
        yield client


@contextlib.asynccontextmanager
async def frontend_serving(folder: Path, *flags: str, register: bool = True) -> AsyncIterator[Client]:
    """A client of a frontend over the model in ``folder``; without one, over a small BERT written there."""
    if not (folder / "config.json").exists():
        write_bert(folder)
    options = frontend.parse(["--model-dir", str(folder), "--device", "cpu", *flags])
    status = Status()
    backend = frontend.FrontendBackend("small", options.attention, status)
    worker = Worker(lambda: frontend.load(backend, options, status, worker.notify), lambda _: None)
    server = serve_web.Server("small", status, backend=backend, worker=worker, metrics=backend.metrics)
    async with serving(server, worker, register=register) as client:
        yield client


@contextlib.contextmanager
def in_thread(make: Callable[[], contextlib.AbstractAsyncContextManager[Client]]) -> Iterator[str]:
    """The URL of a server whose event loop runs in a thread, for clients that block."""
    url, leave = Future[str](), asyncio.Event()

    async def main() -> None:
        async with make() as client:
            url.set_result(client.url)
            await leave.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        yield url.result(60)
    finally:
        loop.call_soon_threadsafe(leave.set)
        thread.join(60)
        loop.close()
