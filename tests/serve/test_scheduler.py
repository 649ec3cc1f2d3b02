from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.fakes import EOS, FakeEngine
from toolkit.serve.sampling import Sampling, Token
from toolkit.serve.scheduler import FinishReason, QueueFullError, Request, Scheduler


@dataclass
class Listener:
    """Collects what one request hears; ``stop_at`` is the text at which it says stop."""

    stop_at: bytes | None = None
    ids: list[int] = field(default_factory=list)
    finished: list[tuple[FinishReason, str | None]] = field(default_factory=list)

    def on_token(self, token: Token, *, end_token: bool) -> bool:
        assert not self.finished, "a token after the end"
        self.ids.append(token.id)
        return self.stop_at is not None and bytes(i for i in self.ids if i < EOS).endswith(self.stop_at)

    def on_finish(self, reason: FinishReason, message: str | None) -> None:
        self.finished.append((reason, message))

    @property
    def text(self) -> bytes:
        return bytes(i for i in self.ids if i < EOS)


class Observer:
    def __init__(self) -> None:
        self.first: list[float] = []
        self.next: list[float] = []
        self.ends: list[FinishReason] = []

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        self.first.append(seconds)

    def next_token(self, seconds: float) -> None:
        self.next.append(seconds)

    def finished(self, reason: FinishReason) -> None:
        self.ends.append(reason)


class Bench:
    def __init__(self, slots: int = 2, max_queue: int = 100, reply: Callable[[bytes], bytes] = lambda p: p) -> None:
        self.now_s = 0.0
        self.engine = FakeEngine(reply, max_batch_size=slots)
        self.observer = Observer()
        self.scheduler = Scheduler(
            self.engine, max_queue, self.observer, slots=slots, end_tokens=[EOS], clock=lambda: self.now_s
        )

    def submit(self, prompt: bytes, max_tokens: int = 50, stop_at: bytes | None = None) -> tuple[Request, Listener]:
        listener = Listener(stop_at)
        request = Request(tuple(prompt), max_tokens, Sampling(), listener)
        self.scheduler.submit(request)
        return request, listener

    def run(self) -> None:
        while self.scheduler.delay_s() == 0:
            self.scheduler.step()


def test_a_request_hears_its_tokens_and_one_end() -> None:
    bench = Bench()
    _, listener = bench.submit(b"abc")
    bench.run()
    assert listener.ids == [*b"abc", EOS]
    assert listener.finished == [("stop", None)]
    assert not bench.engine.in_slots


def test_nothing_to_do_is_no_step() -> None:
    assert Bench().scheduler.delay_s() is None


def test_slots_decode_together_and_the_next_prompt_enters_between_steps() -> None:
    bench = Bench(slots=2)
    listeners = [bench.submit(prompt)[1] for prompt in (b"aaaaaaaa", b"bbbb", b"cc")]
    bench.run()
    assert [listener.text for listener in listeners] == [b"aaaaaaaa", b"bbbb", b"cc"]
    assert max(bench.engine.batches) == 2
    # The third prompt entered as soon as the second had left: no step ran with less than it could.
    assert bench.engine.batches == [2, 2, 2, 2, 2, 2, 1, 1]


def test_an_idle_engine_takes_a_burst_of_prompts_at_once() -> None:
    bench = Bench(slots=3)
    for _ in range(3):
        bench.submit(b"xx")
    bench.scheduler.step()
    assert bench.engine.batches == [3]


def test_while_slots_decode_one_prompt_enters_per_step() -> None:
    bench = Bench(slots=4)
    bench.submit(b"long prompt")
    bench.scheduler.step()
    for _ in range(3):
        bench.submit(b"other")
    bench.scheduler.step()
    assert bench.engine.batches == [1, 2]


def test_while_slots_decode_a_long_prompt_enters_piece_by_piece() -> None:
    bench = Bench(slots=2)
    bench.engine.piece_tokens = 3
    bench.submit(b"abc")
    bench.scheduler.step()
    _, long = bench.submit(b"long one")
    for pieces, batches in ([3, 3], [1, 1]), ([3, 3, 3], [1, 1, 1]), ([3, 3, 3, 2], [1, 1, 1, 1]):
        bench.scheduler.step()
        assert (bench.engine.pieces, bench.engine.batches) == (pieces, batches)
    bench.run()
    assert long.text == b"long one"


def test_a_long_prompt_that_nobody_waits_for_is_not_held_up() -> None:
    bench = Bench(slots=2)
    bench.engine.piece_tokens = 3
    bench.submit(b"long one")
    bench.submit(b"other")
    bench.scheduler.step()
    assert (bench.engine.pieces, bench.engine.batches) == ([3, 3, 2, 3, 2], [2])


def test_a_prompt_whose_client_has_gone_ends_between_its_pieces() -> None:
    bench = Bench(slots=2)
    bench.engine.piece_tokens = 3
    bench.submit(b"abcdef")
    bench.scheduler.step()
    request, gone = bench.submit(b"long one")
    bench.scheduler.step()
    bench.scheduler.cancel(request)
    _, next_one = bench.submit(b"next")
    bench.run()
    assert (gone.ids, gone.finished) == ([], [("cancelled", None)])
    assert next_one.text == b"next"
    assert not bench.engine.in_slots


def test_a_prompt_under_way_is_finished_without_admission() -> None:
    bench = Bench(slots=2)
    bench.engine.piece_tokens = 3
    bench.submit(b"ab")
    bench.scheduler.step()
    _, long = bench.submit(b"long one")
    bench.scheduler.step()
    while bench.scheduler.busy:
        bench.scheduler.step(admit=False)
    assert long.text == b"long one"


def test_without_admission_only_what_is_under_way_goes_on() -> None:
    bench = Bench()
    bench.submit(b"abc")
    bench.scheduler.step()
    _, waiting = bench.submit(b"waits")
    while bench.scheduler.busy:
        bench.scheduler.step(admit=False)
    assert waiting.ids == []
    bench.run()
    assert waiting.text == b"waits"


def test_a_single_token_needs_no_decode_step() -> None:
    bench = Bench()
    _, listener = bench.submit(b"abc", max_tokens=1)
    bench.run()
    assert (listener.text, listener.finished) == (b"a", [("length", None)])
    assert bench.engine.batches == []


def test_a_listener_that_says_stop_ends_the_request_at_once() -> None:
    bench = Bench()
    _, listener = bench.submit(b"one END two", stop_at=b"END")
    bench.run()
    assert listener.text == b"one END"
    assert listener.finished == [("stop", None)]


def test_a_cancelled_request_frees_its_slot_before_the_next_step() -> None:
    bench = Bench(slots=1)
    request, listener = bench.submit(b"a long prompt")
    bench.scheduler.step()
    _, other = bench.submit(b"next")
    request.cancelled = True
    bench.run()
    assert listener.finished == [("cancelled", None)]
    assert other.text == b"next"


def test_a_request_cancelled_in_the_queue_is_never_prefilled() -> None:
    bench = Bench(slots=1)
    bench.submit(b"first")
    request, listener = bench.submit(b"second")
    request.cancelled = True
    bench.run()
    assert listener.finished == [("cancelled", None)]
    assert listener.ids == []


def test_the_queue_is_bounded_and_slots_are_not_counted() -> None:
    bench = Bench(slots=1, max_queue=2)
    bench.submit(b"in its slot")
    bench.scheduler.step()
    bench.submit(b"1")
    bench.submit(b"2")
    assert bench.scheduler.queued == 2
    with pytest.raises(QueueFullError):
        bench.submit(b"3")


def test_a_failing_prefill_ends_that_request_alone() -> None:
    bench = Bench()
    bench.engine.fail_on = b"bad"
    _, bad = bench.submit(b"bad")
    _, good = bench.submit(b"good")
    bench.run()
    assert bad.finished == [("error", "the engine failed: scripted failure")]
    assert good.text == b"good"
    assert not bench.engine.in_slots


def test_a_failing_decode_ends_what_was_in_it_and_frees_the_slots() -> None:
    bench = Bench()
    listeners = [bench.submit(b"abc")[1], bench.submit(b"def")[1]]
    decode = bench.engine.decode
    bench.engine.decode = lambda *_: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    bench.scheduler.step()
    bench.engine.decode = decode  # type: ignore[method-assign]
    assert [listener.finished[0][0] for listener in listeners] == ["error", "error"]
    _, after = bench.submit(b"after")
    bench.run()
    assert after.text == b"after"


def test_logits_that_are_not_finite_are_an_error_and_no_text() -> None:
    bench = Bench()
    bench.engine.prefill = lambda slot, ids, start=0: torch.full((257,), float("nan"))  # type: ignore[method-assign]
    bench.engine.in_slots[0] = []
    _, listener = bench.submit(b"abc")
    bench.run()
    assert listener.ids == []
    assert listener.finished == [("error", "the engine's logits are not finite")]
    assert bench.engine.kept == [False], "later prompts would inherit it"


def test_the_first_token_is_timed_from_submission() -> None:
    bench = Bench(slots=1)
    bench.submit(b"a")
    bench.submit(b"b")
    bench.now_s = 2.0
    bench.run()
    assert bench.observer.first == [2.0, 2.0]


def test_the_next_token_is_timed_from_the_one_before_whatever_ran_between() -> None:
    bench = Bench(slots=2)
    bench.submit(b"ab", max_tokens=2)
    decode = bench.engine.decode

    def slow(slots: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
        bench.now_s += 3.0
        return decode(slots, ids)

    bench.engine.decode = slow  # type: ignore[method-assign]
    bench.run()
    assert bench.observer.next == [3.0]


def test_every_end_is_counted_once_by_its_reason() -> None:
    bench = Bench(slots=1)
    bench.submit(b"a")
    bench.submit(b"ab", max_tokens=1)
    bench.scheduler.cancel(bench.submit(b"gone")[0])
    bench.run()
    assert sorted(bench.observer.ends) == ["cancelled", "length", "stop"]


def test_a_cancelled_request_gives_its_place_in_the_queue_back_at_once() -> None:
    bench = Bench(slots=1, max_queue=1)
    bench.submit(b"in its slot")
    bench.scheduler.step()
    request, listener = bench.submit(b"waits")
    bench.scheduler.cancel(request)
    assert (bench.scheduler.queued, listener.finished) == (0, [("cancelled", None)])
    _, other = bench.submit(b"next")
    bench.scheduler.cancel(request)
    bench.run()
    assert other.text == b"next"


@given(
    slots=st.integers(1, 4),
    piece_tokens=st.integers(1, 7),
    prompts=st.lists(st.tuples(st.binary(min_size=1, max_size=6), st.integers(1, 8), st.integers(0, 12)), max_size=12),
)
def test_every_request_gets_its_own_text_and_one_end_whatever_comes_between(
    slots: int, piece_tokens: int, prompts: list[tuple[bytes, int, int]]
) -> None:
    bench = Bench(slots=slots)
    bench.engine.piece_tokens = piece_tokens
    heard: list[tuple[bytes, int, Listener]] = []
    for prompt, max_tokens, steps in prompts:
        heard.append((prompt, max_tokens, bench.submit(prompt, max_tokens)[1]))
        for _ in range(steps):
            bench.scheduler.step()
    bench.run()
    for prompt, max_tokens, listener in heard:
        assert listener.ids == [*prompt, EOS][:max_tokens]
        assert [reason for reason, _ in listener.finished] == ["length" if max_tokens <= len(prompt) else "stop"]
    assert not bench.engine.in_slots
    assert bench.scheduler.slots_in_use == 0
