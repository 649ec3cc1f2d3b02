"""``scripts/init-prewarm`` against real small servers, some of which misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.standins import openai_server
from toolkit.warm import prompts
from toolkit.warm import steady as proof

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "init-prewarm"
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"


def load() -> ModuleType:
    loader = SourceFileLoader("init_prewarm", str(SCRIPT))
    made = module_from_spec(spec_from_loader("init_prewarm", loader))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(made)
    sys.dont_write_bytecode = before
    return made


prewarm = load()


@dataclass
class How:
    """What a server does. ``status``: by path, how often a request is answered otherwise (-1: always)."""

    paths: tuple[str, ...] = (COMPLETIONS,)
    answer: str = " Paris."
    answer_again: str | None = None  # to a prompt that was asked before
    status: dict[str, tuple[int, int]] = field(default_factory=dict)
    health: int = 200
    delay_s: Callable[[int], float] = lambda _: 0.0
    error: str | None = None
    cut: bool = False
    silent: bool = False
    key: str | None = None
    longest: int = 10**6
    stage: list[str] = field(default_factory=list)
    vector: list[float] = field(default_factory=lambda: [0.6, 0.8])
    asked: list[tuple[str, Any]] = field(default_factory=list)
    together: list[int] = field(default_factory=list)


class Handler(openai_server.Handler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Quiet: what matters is in the record."""

    def do_GET(self) -> None:
        how = self.server.how
        if self.path == "/health":
            self.send(how.health, {})
        elif self.path == "/v1/stage" and how.stage:
            self.send(200, {"stage": how.stage.pop(0) if len(how.stage) > 1 else how.stage[0]})
        elif self.path == "/v1/models":
            self.send(200, {"data": [{"id": "listed"}]})
        else:
            self.send(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.running += 1
            self.server.how.together.append(self.server.running)
            self.server.how.asked.append((self.path, body))
            number = len(self.server.how.asked)
        self.reply(body, number)
        with self.server.lock:
            self.server.running -= 1

    def reply(self, body: dict[str, Any], number: int) -> None:
        how = self.server.how
        status, times = how.status.get(self.path, (200, 0))
        if how.key is not None and self.headers.get("Authorization") != f"Bearer {how.key}":
            self.send(401, {"error": "no key"})
        elif times:
            how.status[self.path] = (status, times - 1)
            self.send(status, {"error": "loading"})
        elif self.path in ("/v1/warmup", "/v1/register"):
            self.send(200, {"token": self.headers.get("X-Coexist-Token")})
        elif self.path not in how.paths:
            self.send(404, {"detail": "Not Found"})
        elif len(str(body.get("prompt", body.get("input", ""))).split()) > how.longest:
            self.send(400, {"error": "too long"})
        else:
            time.sleep(how.delay_s(number))
            self.right(body)

    def right(self, body: dict[str, Any]) -> None:
        how = self.server.how
        if how.error is not None:
            self.send(200, {"error": {"message": how.error}})
        elif self.path == EMBEDDINGS:
            self.send(200, {"data": [{"embedding": how.vector}]})
        elif body["stream"]:
            self.stream("" if how.silent else how.answer)
        else:
            again = sum(asked == (self.path, body) for asked in how.asked) > 1
            answer = how.answer_again if again and how.answer_again is not None else how.answer
            text = {"message": {"content": answer}} if self.path == CHAT else {"text": answer}
            self.send(200, {"choices": [text]})

    def stream(self, answer: str) -> None:
        told = {"delta": {"content": answer}} if self.path == CHAT else {"text": answer}
        end = "" if self.server.how.cut else "data: [DONE]\n\n"
        self.send(200, f": ping\n\ndata: {json.dumps({'choices': [told]})}\n\n{end}", "text/event-stream")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, how: How, port: int = 0) -> None:
        self.how, self.lock, self.running = how, threading.Lock(), 0
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, *_: object) -> None:
        """Who stopped waiting hung up."""


@dataclass
class Outcome:
    status: int
    document: dict[str, Any]
    told: str

    @property
    def last(self) -> str:
        return self.told.splitlines()[-1].partition(" s  ")[2]


@contextlib.contextmanager
def serving(how: How) -> Iterator[str]:
    server = Server(how)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def run(capsys, monkeypatch) -> Callable[..., Outcome]:
    monkeypatch.setattr(prewarm, "RETRY_S", 0.01)
    monkeypatch.delenv("COEXIST_TOKEN", raising=False)

    def against(how: How, *arguments: str) -> Outcome:
        with serving(how) as url:
            status = prewarm.main(["--url", url, "--json", "--steady", "50", *arguments])
        out, err = capsys.readouterr()
        return Outcome(status, json.loads(out), err)

    return against


def test_a_server_that_answers_is_warm_and_the_numbers_are_told(run):
    how = How()
    outcome = run(how, "--canary", "The capital of France is= Paris")
    assert outcome.status == 0
    document = outcome.document
    assert (document["schema"], document["warm"], document["error"]) == (1, True, None)
    assert (document["model"], document["kind"]) == ("listed", "completions")
    assert document["canary"] == {"ok": True, "expected": " Paris", "got": " Paris."}
    assert [each["what"] for each in document["warmup"]] == [
        "8 words", "64 words", "256 words", "1024 words", "2 at once", "4 at once", "8 at once",
    ]  # fmt: skip
    assert document["first_token_ms"].keys() == {"first", "p50", "p99"}
    assert outcome.last.startswith("warm: first ")


def test_lengths_and_batches_are_what_the_server_gets(run):
    how = How(delay_s=lambda number: 0.03 if number > 3 else 0)
    run(how, "--lengths", "3,5", "--batch", "4", "--model", "mine")
    lengths = [len(body["prompt"].split()) for _, body in how.asked]
    assert lengths[1:3] == [3, 5]
    assert max(how.together) == 4
    assert {body["model"] for _, body in how.asked} == {"mine"}
    prompts_asked = [body["prompt"] for _, body in how.asked if body["stream"]]
    assert len(set(prompts_asked)) == len(prompts_asked)


def test_a_length_that_is_too_long_ends_the_growing_and_is_no_fault(run):
    outcome = run(How(longest=100), "--batch", "1")
    assert outcome.status == 0
    assert [each["what"] for each in outcome.document["warmup"]] == ["8 words", "64 words"]
    assert "warm-up stops before 256 words" in outcome.told


def test_requests_of_ones_own_take_the_place_of_the_default_ones(run, tmp_path):
    file = tmp_path / "requests.json"
    file.write_text(
        json.dumps([{"prompt": "one", "stream": False}, {"path": CHAT, "body": {"messages": [], "stream": False}}])
    )
    how = How(paths=(COMPLETIONS, CHAT))
    outcome = run(how, "--requests", str(file), "--batch", "1")
    assert outcome.status == 0
    assert how.asked[1:3] == [
        (COMPLETIONS, {"model": "listed", "prompt": "one", "stream": False}),
        (CHAT, {"model": "listed", "messages": [], "stream": False}),
    ]


@pytest.mark.parametrize(("path", "kind"), [(CHAT, "chat"), (EMBEDDINGS, "embeddings")])
def test_what_a_server_answers_is_found_out(run, path, kind):
    outcome = run(How(paths=(path,)), "--batch", "2")
    assert (outcome.status, outcome.document["kind"]) == (0, kind)


def test_a_server_that_loads_is_waited_for_though_its_health_says_200(run):
    how = How(status={COMPLETIONS: (503, 5)})
    outcome = run(how)
    assert outcome.status == 0
    assert outcome.told.count("POST /v1/completions: 503 Service Unavailable") == 1


def test_503_for_ever_ends_in_a_time_out_with_what_was_last_heard(run):
    outcome = run(How(status={COMPLETIONS: (503, -1)}), "--timeout", "200ms")
    assert (outcome.status, outcome.document["warm"]) == (4, False)
    assert outcome.document["error"]["code"] == "not_in_time"
    assert outcome.last.startswith("not ready within 0.2 s: POST /v1/completions: 503 Service Unavailable")


def test_a_health_path_that_never_says_200_ends_in_a_time_out(run):
    outcome = run(How(health=503), "--timeout", "150ms")
    assert outcome.status == 4
    assert "GET /health: 503" in outcome.last


def test_a_server_without_a_health_path_is_asked_at_once(run):
    assert run(How(health=404)).status == 0


def test_nobody_there_ends_in_a_time_out(capsys, monkeypatch):
    monkeypatch.setattr(prewarm, "RETRY_S", 0.01)
    with serving(How()) as url:
        pass
    assert prewarm.main(["--url", url, "--timeout", "100ms"]) == 4
    assert "nothing listens at 127.0.0.1:" in capsys.readouterr().err


def test_a_server_that_hangs_ends_in_a_time_out(run):
    outcome = run(How(delay_s=lambda _: 2), "--timeout", "200ms")
    assert outcome.status == 4
    assert "no whole answer in time" in outcome.last


def test_times_that_never_settle_are_not_warm(run):
    how = How(delay_s=lambda number: 0.06 * (number * number % 3))
    outcome = run(how, "--lengths", "8", "--batch", "1", "--steady", "1.01", "--steady-within", "1ms")
    assert (outcome.status, outcome.document["error"]["code"]) == (1, "not_warm")
    assert outcome.last.startswith("not warm: times are not steady after ")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (How(answer=" London."), "the canary's answer is wrong: expected 'Paris', got 'London.'"),
        (How(error="CUDA error: an illegal memory access"), "the server reports: "),
        (How(cut=True), "the stream ended before the answer did"),
        (How(silent=True), "eight answers in a row hold no text"),
        (How(status={COMPLETIONS: (500, -1)}), "POST /v1/completions: 500 Internal Server Error"),
        (How(key="secret"), "401 Unauthorized"),
        (How(paths=()), "it answers no kind of request; POST /v1/completions: 404 Not Found"),
    ],
)  # fmt: skip
def test_each_misbehaviour_ends_with_1_and_one_clear_line(run, how, told):
    outcome = run(how, "--canary", "The capital of France is= Paris", "--batch", "1", "--lengths", "8")
    assert (outcome.status, outcome.document["warm"]) == (1, False)
    assert told in outcome.last
    assert told in outcome.document["error"]["what"]


def test_a_wrong_canary_is_told_in_the_document(run):
    document = run(How(answer="London"), "--canary", "2+2=4=Paris").document
    assert document["canary"] == {"ok": False, "expected": "Paris", "got": "London"}


def test_a_canary_that_is_wrong_only_when_it_is_asked_again_is_wrong(run):
    outcome = run(How(answer_again=" tin can"), "--canary", "2+2=Paris", "--batch", "1", "--lengths", "8")
    assert outcome.status == 1
    assert "expected 'Paris', got 'tin can'" in outcome.last


def test_the_url_may_stand_alone():
    assert prewarm.checked(["http://127.0.0.1:8000"]).url == prewarm.checked(["--url", "http://127.0.0.1:8000"]).url


def test_a_key_is_sent_from_a_variable_and_never_told(run, monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")
    outcome = run(How(key="s3cret"), "--key-env", "MY_KEY")
    assert outcome.status == 0
    assert "s3cret" not in outcome.told + json.dumps(outcome.document)


@pytest.mark.parametrize(("vector", "status"), [([3.0, 4.0], 0), ([4.0, 3.0], 1), ([1.0], 1)])
def test_the_canary_of_embeddings_is_a_vector(run, tmp_path, vector, status):
    file = tmp_path / "vector.json"
    file.write_text(json.dumps({"input": "hello", "vector": vector}))
    outcome = run(How(paths=(EMBEDDINGS,)), "--canary-vector", str(file), "--batch", "1")
    assert outcome.status == status


@pytest.mark.parametrize("vector", [[0.0, 0.0], [float("nan"), 1.0], []])
def test_vectors_that_say_nothing_are_no_answers(run, vector):
    outcome = run(How(paths=(EMBEDDINGS,), vector=vector), "--batch", "1")
    assert outcome.status == 1
    assert "vector" in outcome.last


def test_a_canary_of_the_other_kind_is_told(run):
    outcome = run(How(paths=(EMBEDDINGS,)), "--canary", "a=b")
    assert outcome.status == 1
    assert "use --canary-vector" in outcome.last


def test_a_server_of_coexist_is_warmed_by_itself_and_registered_when_it_is_warm(run, monkeypatch):
    monkeypatch.setenv("COEXIST_TOKEN", "t0ken")
    how = How(stage=["preload", "preload", "loaded"], health=503)
    outcome = run(how)
    paths = [path for path, _ in how.asked]
    assert outcome.status == 0
    assert paths.count("/v1/warmup") == 1
    assert paths[-1] == "/v1/register"
    assert "it is loading" in outcome.told


def test_a_wrong_server_of_coexist_is_never_registered(run, monkeypatch):
    monkeypatch.setenv("COEXIST_TOKEN", "t0ken")
    how = How(stage=["loaded"], answer="London")
    assert run(how, "--canary", "x=Paris").status == 1
    assert "/v1/register" not in [path for path, _ in how.asked]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--url"),
        (["http://h", "--url", "http://h"], "one URL is wanted"),
        (["--url", "127.0.0.1:8000"], "is no address"),
        (["--url", "http://h:99999"], "is no address"),
        (["--url", "http://h", "--timeout", "soon"], "'soon' is no time"),
        (["--url", "http://h", "--steady", "0.9"], "is no number over 1"),
        (["--url", "http://h", "--canary", "nothing"], "is not PROMPT=EXPECTED"),
        (["--url", "http://h", "--requests", "/nowhere.json"], "can't be read: No such file"),
        (["--url", "http://h", "--lengths", "8,x"], "is no list of lengths"),
        (["--url", "http://h", "--batch", "0"], "is no whole number from 1"),
        (["--url", "http://h", "--ready", "health"], "a path begins with /"),
        (["--url", "http://h", "--key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["--url", "http://h", "--kind", "embeddings", "--canary", "a=b"], "use --canary-vector"),
    ],
)
def test_wrong_usage_ends_with_2(capsys, arguments, told):
    with pytest.raises(SystemExit) as ended:
        prewarm.main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_it_runs_alone_as_in_a_container(tmp_path):
    alone = tmp_path / "init-prewarm"
    alone.write_bytes(SCRIPT.read_bytes())
    with serving(How()) as url:
        argv = [
            sys.executable,
            "-I",
            "-S",
            str(alone),
            "--url",
            f"{url}/v1/",
            "--steady",
            "50",
            "--lengths",
            "8",
            "--json",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env={}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["warm"] is True


def test_it_may_be_executed_and_imports_the_standard_library_only():
    assert os.access(SCRIPT, os.X_OK)
    imported = {
        line.split()[1].split(".")[0]
        for line in SCRIPT.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert imported <= set(sys.stdlib_module_names)


@given(st.lists(st.tuples(st.sampled_from([6, 14, 30]), st.floats(1, 200)), max_size=60))
def test_steady_means_the_same_as_in_coexist(samples):
    assert prewarm.steady(samples, proof.RATIO) == proof.steady([proof.Sample(*each) for each in samples])


def test_every_option_is_documented():
    page = (SCRIPT.parents[1] / "docs" / "init-prewarm.md").read_text(encoding="utf-8")
    options = {name for action in prewarm.parser()._actions for name in action.option_strings if name.startswith("--")}
    assert [name for name in options - {"--help"} if name not in page] == []


def commands(document: object) -> Iterator[list[str]]:
    """The words of every ``command`` in a YAML document, those of a shell among them."""
    if isinstance(document, dict):
        found = document.get("command")
        if isinstance(found, list):
            yield [word for each in found for word in each.partition(" && ")[0].split()]
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from commands(each)


def test_command_lines_in_the_documentation_are_right():
    page = (SCRIPT.parents[1] / "docs" / "init-prewarm.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    shown = [line for block in blocks for line in commands(yaml.safe_load(block))]
    found = [line for line in shown if "init-prewarm" in " ".join(line)]
    assert len(found) == 4
    for line in found:
        start = next(at for at, word in enumerate(line) if word.endswith("init-prewarm"))
        prewarm.checked(line[start + 1 :])


def test_its_numbers_are_coexist_s():
    assert (prewarm.WINDOW, prewarm.SLACK_MS, prewarm.FALL, prewarm.BEST_OF) == (
        proof.WINDOW, proof.SLACK_MS, proof.FALL, proof.BEST_OF,
    )  # fmt: skip
    assert (prewarm.PROBE_WORDS, prewarm.FIRST_LENGTHS) == (prompts.PROBE_LENGTHS, prompts.FIRST_LENGTHS)
