"""One request's tokens on their way from the inference thread to its handler in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from toolkit.serve.sampling import Token
from toolkit.serve.scheduler import FinishReason
from toolkit.serve.text import IncrementalText, StopMatcher


@dataclass(frozen=True)
class Piece:
    """What one step added: text that is safe to show, the token, and at the end why it ended."""

    text: str = ""
    tokens: tuple[Token, ...] = ()
    finish: FinishReason | None = None
    message: str | None = None


class Generation:
    """Listener of one request. ``on_*`` are called in the inference thread, ``pieces`` in the event loop."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece] = asyncio.Queue()
        self._text = IncrementalText(decode)
        self._stops = StopMatcher(stops)

    def on_token(self, token: Token, *, end_token: bool) -> bool:
        """True when the text has met a stop string."""
        text, stopped = self._stops.push("" if end_token else self._text.push(token.id))
        self._send(Piece(text, (token,)))
        return stopped

    def on_finish(self, reason: FinishReason, message: str | None) -> None:
        """What was held back in case of a stop string is let through."""
        self._send(Piece(self._stops.flush(), (), reason, message))

    async def pieces(self) -> AsyncIterator[Piece]:
        """The pieces in order; the last one has ``finish``."""
        while True:
            piece = await self._queue.get()
            yield piece
            if piece.finish is not None:
                return

    def _send(self, piece: Piece) -> None:
        # The loop is closed when the process leaves while requests are under way; then nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)
