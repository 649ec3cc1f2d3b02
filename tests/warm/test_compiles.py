from __future__ import annotations

from toolkit.warm.compiles import Compile, Seen, in_words, since


def test_only_what_grew_in_a_channel_that_can_be_seen_is_a_compile() -> None:
    before = Seen({"counter": 3, "triton": 5, "log": None, "nvrtc": None})
    after = Seen({"counter": 4, "triton": 5, "log": 9, "nvrtc": None}, {"counter": "decode:8"})
    assert since(before, after) == (Compile("counter", 1, "decode:8"),)
    assert in_words(since(before, after)) == "counter: 1 (decode:8)"


def test_what_cannot_be_seen_is_said_to_be_so_and_never_0() -> None:
    seen = Seen({"counter": 0, "nvrtc": None})
    assert seen.document() == {"counter": 0, "nvrtc": "unobservable"}
    assert seen.observed
    assert not Seen({"nvrtc": None}).observed
