"""The one thread that loads the model and runs inference, so that the event loop never waits for either."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Work(Protocol):
    """What the thread does between jobs."""

    @property
    def busy(self) -> bool:
        """True while something is under way that a job would disturb."""

    def delay_s(self) -> float | None:
        """Seconds until the next step is due; 0: now; None: nothing to do."""

    def step(self, admit: bool) -> None:
        """One bounded piece of work. Without ``admit`` only what is under way goes on."""


class Worker:
    """Runs ``load`` once, then steps of the work it returns, with jobs in the pauses between.

    ``on_end`` is called in this thread with what ended it: the error of ``load`` or of a step, or None after ``stop``.
    """

    def __init__(self, load: Callable[[], Work], on_end: Callable[[BaseException | None], None]) -> None:
        self._load = load
        self._on_end = on_end
        self._wake = threading.Condition()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._stopping = False
        # A daemon: the second SIGTERM must not wait for a step inside native code.
        self._thread = threading.Thread(target=self._main, name="inference", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def notify(self) -> None:
        """Wakes the thread, because there is new work."""
        with self._wake:
            self._wake.notify()

    def job(self, call: Callable[[], Any]) -> Future[Any]:
        """The future of ``call``, which runs in the thread when nothing else is under way."""
        future: Future[Any] = Future()
        with self._wake:
            self._jobs.append((call, future))
            self._wake.notify()
        return future

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> None:
        """Returns when the thread has ended or the time is over."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            self._loop(self._load())
        except BaseException as e:
            error = e
        self._on_end(error)

    def _loop(self, work: Work) -> None:
        while self._wait(work):
            if self._jobs and not work.busy:
                self._run_job()
            else:
                work.step(admit=not self._jobs)

    def _wait(self, work: Work) -> bool:
        """False when the thread should end; else there is a job or a step to do."""
        with self._wake:
            while not self._stopping:
                delay_s = work.delay_s()
                if self._jobs or delay_s == 0:
                    return True
                self._wake.wait(delay_s)
            return False

    def _run_job(self) -> None:
        call, future = self._jobs.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(call())
        except Exception as e:
            future.set_exception(e)
