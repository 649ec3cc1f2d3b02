from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.runtimes.base import HttpProbe, Probes
from toolkit.warm import walk
from toolkit.warm.client import RequestFailedError


def completion(*prompts: str, adapter: str | None = None) -> HttpProbe:
    prompt: Any = list(prompts) if len(prompts) > 1 else prompts[0]
    return HttpProbe("/v1/completions", "POST", {"prompt": prompt, "max_tokens": 4}, adapter=adapter)


class Program:
    """Takes at most ``room`` prompts at once; ``refusal`` is what it says to more."""

    def __init__(self, room: int, refusal: RequestFailedError) -> None:
        self.room, self.refusal = room, refusal
        self.asked: list[int] = []

    async def send(self, probe: HttpProbe) -> str:
        prompt = probe.body["prompt"]
        self.asked.append(len(prompt) if isinstance(prompt, list) else 1)
        if self.asked[-1] > self.room:
            raise self.refusal
        return "{}"


def refused(status: int, reason: str = "refused") -> RequestFailedError:
    return RequestFailedError(reason, status=status)


OOM = RequestFailedError("POST /v1/completions: 500: CUDA out of memory. Tried to allocate 20 GiB", status=500)


def told(_: int, __: int, ___: str) -> None:
    """Nobody listens."""


def plan(*probes: HttpProbe, mode: Any = "full") -> tuple[walk.Key, ...]:
    return walk.plan(Probes(None, warmup=probes), mode)


def test_a_key_is_how_many_prompts_of_how_many_words_with_which_adapter() -> None:
    assert walk.key_of(completion("a b c")) == "1x3"
    assert walk.key_of(completion("a b", "c", "d e f g")) == "3x4"
    assert walk.key_of(completion("a", adapter="sql")) == "1x1 adapter=sql"
    assert walk.key_of(HttpProbe("/v1/warmup", "POST", {"mode": "full"})) == "POST /v1/warmup"
    chat = HttpProbe("/v1/chat/completions", "POST", {"messages": [{"role": "user", "content": "a b"}]})
    assert walk.key_of(chat) == "1x2"


def test_the_mode_says_how_many_keys_there_are() -> None:
    probes = (completion("a"), completion("a b"))
    assert [len(plan(*probes, mode=mode)) for mode in ("full", "single", "none")] == [2, 1, 0]


@pytest.mark.parametrize("refusal", [OOM, refused(429), refused(503), refused(413)])
async def test_a_batch_that_does_not_fit_is_halved_and_the_walk_goes_on(refusal: RequestFailedError) -> None:
    program = Program(2, refusal)
    keys = plan(completion("a"), completion(*"abcdefgh"), completion("a b"))
    covered = await walk.walk(keys, program.send, told)
    assert program.asked == [1, 8, 4, 2, 1]
    assert covered.ran == ("1x1", "2x1", "1x2")
    assert covered.left == ("8x1", "4x1")
    assert covered.total == 5


async def test_one_prompt_that_is_out_of_memory_is_left_out_and_told() -> None:
    program = Program(0, OOM)
    covered = await walk.walk(plan(completion("a b c")), program.send, told)
    assert (covered.ran, covered.left, covered.total) == ((), ("1x3",), 1)


async def test_another_fault_ends_the_walk() -> None:
    with pytest.raises(RequestFailedError):
        await walk.walk(plan(completion(*"ab")), Program(0, refused(400, "bad request")).send, told)
    with pytest.raises(RequestFailedError):
        await walk.walk(plan(completion("a")), Program(0, refused(503)).send, told)


async def test_a_server_that_names_its_keys_is_believed() -> None:
    async def send(_: HttpProbe) -> str:
        return json.dumps({"keys": ["prefill:64", "decode:1"]})

    covered = await walk.walk(plan(HttpProbe("/v1/warmup", "POST", {"mode": "full"})), send, told, ("experts",))
    assert (covered.ran, covered.total, covered.unknown) == (("prefill:64", "decode:1"), 2, ("experts",))


async def test_each_key_is_told_before_it_runs() -> None:
    heard: list[tuple[int, int, str]] = []
    keys = plan(completion("a"), completion("a b"))
    await walk.walk(keys, Program(8, OOM).send, lambda *said: heard.append(said))
    assert heard == [(0, 2, "1x1"), (1, 2, "1x2")]


@given(st.integers(1, 64), st.integers(1, 64))
async def test_whatever_the_room_something_of_a_batch_runs(size: int, room: int) -> None:
    prompts = [f"w{at}" for at in range(size)]
    program = Program(room, OOM)
    covered = await walk.walk(plan(completion(*prompts)), program.send, told)
    assert len(covered.ran) == 1
    assert program.asked[-1] <= room
    assert program.asked == sorted(program.asked, reverse=True)
