"""A log as a stream of bytes, cut into the few lines worth a look; memory stays bounded however long a line is."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from toolkit.diagnose.needles import Needles

BLOCK_BYTES = 256 * 1024
MAX_LINE_BYTES = 1024 * 1024
OVERLAP_BYTES = 4096
TAIL_BYTES = 32 * 1024
KNOWN_SHAPES = 50_000

Pieces = Iterable["bytes | str | None"]  # None: a pause, that is all for now

_ANSI = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()][0-9A-Za-z]|[=>78cDEHM])")
_RANK_TAG = b"]<std"
_TELLING_NUMBER = re.compile(rb"(?:error|exit\w*|signal|code|status|rc|failure|errno|failed)\W{0,3}-?\d")


@dataclass(frozen=True)
class RawLine:
    """A line without colours and line feed; ``number`` counts line feeds from 1."""

    number: int
    data: bytes

    @property
    def low(self) -> bytes:
        return self.data.lower()

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class _Block:
    data: bytes
    ends_line: bool


def _blocks(pieces: Pieces, held: bytearray) -> Iterator[_Block | None]:
    """Whole lines, ``BLOCK_BYTES`` or more at a time; a line that is too long comes in parts that overlap.

    A pause gives out the whole lines there are, and passes through. ``held`` is the line that has no end yet.
    """
    for piece in pieces:
        held += piece.encode("utf-8", errors="surrogateescape") if isinstance(piece, str) else piece or b""
        if len(held) < BLOCK_BYTES and piece is not None:
            continue
        end = held.rfind(b"\n") + 1
        if end:
            whole = bytes(held[:end])
            del held[:end]
            yield _Block(whole, True)
        while len(held) > MAX_LINE_BYTES:
            yield _Block(bytes(held[:MAX_LINE_BYTES]), False)
            del held[: MAX_LINE_BYTES - OVERLAP_BYTES]
        if piece is None:
            yield None
    if held:
        last = bytes(held)
        held.clear()
        yield _Block(last, True)


class Scanner:
    """Iterates over the lines that may say something; ``look_ahead`` asks for so many more, whatever they say.

    Such a line holds one of ``needles``. One whose shape (without its digits) was found boring is not looked at again.
    A pause among the pieces comes out as None.
    """

    def __init__(self, pieces: Pieces, needles: Needles, lines_before: int = 0) -> None:
        self._pieces = pieces
        self._held = bytearray()
        self._needles = needles
        self._boring: set[int] = set()
        self._tail: deque[RawLine] = deque()
        self._tail_bytes = 0
        self.look_ahead = 0
        self.lines = lines_before

    def __iter__(self) -> Iterator[RawLine | None]:
        for block in _blocks(self._pieces, self._held):
            if block is None:
                yield None
                continue
            data = _ANSI.sub(b"", block.data) if b"\x1b" in block.data else block.data
            lines = data.split(b"\n")
            if not lines[-1]:
                lines.pop()
            yield from self._of_block(lines)
            self._remember(lines)
            self.lines += len(lines) if block.ends_line else 0

    def forget_boring(self) -> None:
        """Looks at every line again, since its meaning has changed."""
        self._boring.clear()

    def mark_boring(self, line: RawLine) -> None:
        """The line, and others that differ in numbers only, say nothing new."""
        if not _TELLING_NUMBER.search(line.low):
            self._boring.add(_shape(line.data))

    def tail(self) -> list[RawLine]:
        """The last lines of the log, about ``TAIL_BYTES`` of them, and the one whose end is not written yet."""
        begun = _ANSI.sub(b"", bytes(self._held[-TAIL_BYTES:]))
        return [*self._tail, *([RawLine(self.lines + 1, begun)] if begun else [])]

    def _of_block(self, lines: list[bytes]) -> Iterator[RawLine]:
        if len(self._boring) > KNOWN_SHAPES:
            self._boring.clear()
        boring, wanted = self._boring, self._needles.is_in
        for number, line in enumerate(lines, self.lines + 1):
            shape = _shape(line)
            if self.look_ahead:
                self.look_ahead -= 1
            elif shape in boring:
                continue
            else:
                low = line.lower()
                if not wanted(low) and low.count(_RANK_TAG) < 2:
                    boring.add(shape)
                    continue
            yield RawLine(number, line)

    def _remember(self, lines: list[bytes]) -> None:
        """Keeps the end of the log; of a very long line only its end."""
        first = self.lines + 1
        for number, line in enumerate(lines[-400:], first + max(0, len(lines) - 400)):
            self._tail.append(RawLine(number, line[-TAIL_BYTES:]))
            self._tail_bytes += len(self._tail[-1].data)
        while self._tail_bytes > TAIL_BYTES and len(self._tail) > 1:
            self._tail_bytes -= len(self._tail.popleft().data)


def _shape(line: bytes) -> int:
    return hash(line.translate(None, b"0123456789"))
