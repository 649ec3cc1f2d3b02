from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from toolkit.serve.batcher import Batcher, Limits, QueueFullError, Request, Tokens


class Bench:
    """A batcher with a fake clock and an encoder that answers with the length of each text."""

    def __init__(self, **limits: float) -> None:
        self.now_s = 0.0
        self.batches: list[list[int]] = []
        chosen = {"max_batch": 4, "max_batch_tokens": 100, "max_wait_s": 0.5, "max_queue": 8, **limits}
        self.batcher = Batcher(self._embed, Limits(**chosen), lambda *_: None, lambda: self.now_s)  # type: ignore[arg-type]
        self.done: list[tuple[str, Exception | None]] = []

    def _embed(self, texts: Sequence[Tokens]) -> torch.Tensor:
        self.batches.append([len(text) for text in texts])
        return torch.tensor([[float(len(text))] for text in texts])

    def submit(self, name: str, *lengths: int) -> Request:
        request = Request([Tokens((0,) * length) for length in lengths], lambda error: self.done.append((name, error)))
        self.batcher.submit(request)
        return request

    def run(self) -> None:
        while self.batcher.queued:
            self.batcher.step()


def test_texts_of_several_requests_share_a_batch_and_keep_their_place() -> None:
    bench = Bench()
    first, second = bench.submit("first", 3, 5), bench.submit("second", 4)
    bench.batcher.step()
    assert bench.batches == [[3, 5, 4]]
    assert [first.vectors[0].item(), first.vectors[1].item(), second.vectors[0].item()] == [3, 5, 4]
    assert bench.done == [("first", None), ("second", None)]


def test_a_batch_is_bounded_in_texts_and_in_tokens() -> None:
    bench = Bench()
    bench.submit("texts", 1, 1, 1, 1, 1)
    bench.run()
    assert bench.batches == [[1, 1, 1, 1], [1]]
    bench = Bench()
    bench.submit("tokens", 60, 40, 1)
    bench.run()
    assert bench.batches == [[60, 40], [1]]


def test_a_text_over_the_token_bound_goes_alone() -> None:
    bench = Bench()
    bench.submit("long", 500, 500)
    bench.run()
    assert bench.batches == [[500], [500]]


def test_a_client_alone_never_waits() -> None:
    bench = Bench()
    assert bench.batcher.delay_s() is None
    bench.submit("alone", 1)
    assert bench.batcher.delay_s() == 0
    bench.run()
    bench.submit("alone", 1)
    assert bench.batcher.delay_s() == 0


def test_after_a_shared_batch_the_next_one_waits_within_its_bound_unless_it_is_full() -> None:
    bench = Bench()
    bench.submit("a", 1)
    bench.submit("b", 1)
    bench.run()
    bench.submit("a", 1)
    assert bench.batcher.delay_s() == 0.5
    bench.now_s = 0.3
    assert bench.batcher.delay_s() == pytest.approx(0.2)
    bench.now_s = 0.7
    assert bench.batcher.delay_s() == 0
    bench.now_s = 0.0
    bench.submit("b", 1, 1, 1)
    assert bench.batcher.delay_s() == 0


def test_the_queue_is_bounded_but_a_larger_request_may_wait_alone() -> None:
    bench = Bench()
    bench.submit("large", *[1] * 20)
    with pytest.raises(QueueFullError):
        bench.submit("more", 1)
    bench.run()
    bench.submit("more", 1)


def test_a_cancelled_request_is_not_computed() -> None:
    bench = Bench()
    gone = bench.submit("gone", 7, 7)
    bench.submit("here", 2)
    gone.cancelled = True
    bench.run()
    assert bench.batches == [[2]]


def test_a_failure_ends_each_request_of_the_batch_once_and_drops_their_rest() -> None:
    bench = Bench(max_batch=2)

    def fail(texts: Sequence[Tokens]) -> torch.Tensor:
        raise RuntimeError("scripted")

    bench.batcher._embed = fail
    bench.submit("a", 1, 1, 1)
    bench.batcher.step()
    bench.batcher._embed = bench._embed
    bench.run()
    assert [name for name, error in bench.done if error] == ["a"]
    assert bench.batches == []
