"""Text out of tokens as they come: never half a character, and never past a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character is at most four byte tokens; a longer tail of replacement characters is what the model wrote.
MAX_PARTIAL_TOKENS = 8


class IncrementalText:
    """Turns token ids into text piece by piece; a piece ends at a whole character.

    Each piece is the difference of two decodings that start at the same earlier token, because a token's text
    depends on the token before it (spaces, byte fallback).
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context = 0
        self._told = 0

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is half done."""
        self._ids.append(token_id)
        before = self._decode(self._ids[self._context : self._told])
        after = self._decode(self._ids[self._context :])
        partial = after.endswith(REPLACEMENT) and len(self._ids) - self._told < MAX_PARTIAL_TOKENS
        if partial or len(after) <= len(before):
            return ""
        self._context, self._told = self._told, len(self._ids)
        return after[len(before) :]


class StopMatcher:
    """Lets text through up to the first stop string, and holds back what may be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is safe to send, and whether a stop string was met (it is cut off)."""
        if not self._stops:
            return text, False
        self._held += text
        hits = [at for at in map(self._held.find, self._stops) if at >= 0]
        if hits:
            safe, self._held = self._held[: min(hits)], ""
            return safe, True
        keep = self._possible_start()
        safe, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return safe, False

    def flush(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self) -> int:
        longest = min(len(self._held), max(map(len, self._stops)) - 1)
        for size in range(longest, 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stops):
                return size
        return 0
