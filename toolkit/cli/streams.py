"""The three standard streams made fit for use: none closed, none that fails for a character or a lost terminal."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from typing import Any


class UnwritableError(OSError):
    """The answer cannot be written to standard output; a reader that left is a BrokenPipeError as ever."""


class _Strict(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UnwritableError(error.errno, error.strerror) from error


class _Lossy(io.FileIO):
    """What cannot be written is lost: a terminal that went away must not keep a deployment from stopping tidily."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Opens what the caller closed (``>&-``) to nowhere; shows characters that a terminal lacks by their number.

    An open number 1 or 2 also keeps files that are opened later from being taken for standard output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    sys.stdout = _text(_Strict(sys.stdout.fileno(), "w", closefd=False), sys.stdout.encoding, sys.stdout.isatty())
    sys.stderr = _text(_Lossy(sys.stderr.fileno(), "w", closefd=False), sys.stderr.encoding, True)


def _text(raw: io.FileIO, encoding: str, line_buffering: bool) -> io.TextIOWrapper:
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding, errors="backslashreplace", line_buffering=line_buffering)


def forget_output() -> None:
    """What is still in the buffer of standard output goes nowhere when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_with_reader() -> None:
    """From now on the process ends when nobody reads its standard output any more, even while it has nothing to say."""
    threading.Thread(target=_wait_for_reader, daemon=True).start()


def _wait_for_reader() -> None:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # asked for nothing, it still tells of the other end's departure
    poll.poll()
    os._exit(0)
