"""Signals that mean "stop, and tidy up": Ctrl-C, a plain kill, a terminal that closes."""

from __future__ import annotations

import signal


def signals() -> list[signal.Signals]:
    """The signals; under ``nohup`` a terminal that closes means nothing."""
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]


def all_as_ctrl_c() -> None:
    """From now on each of them raises KeyboardInterrupt, so that every block is left tidily."""
    for number in signals():
        signal.signal(number, signal.default_int_handler)
