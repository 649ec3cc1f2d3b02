"""Looks for progress of one attempt while it starts, so that one that stands still is not waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from toolkit.supervise.compile_watch import Compilers
from toolkit.supervise.logs import LogView
from toolkit.supervise.own_words import OwnWords, asked_paths
from toolkit.supervise.process import Tree
from toolkit.supervise.window import Sample, Stall, Window
from toolkit.warm.model import Clock, Progress, Target

SAMPLE_S = 0.5
WIDER_S = 2.0

# What takes longer to look at, and the bytes that the attempt holds on its GPUs where it was asked for them.
LookWider = Callable[[], Awaitable[int | None]]


@dataclass
class Lookout:
    """What is seen of one attempt's progress; ``window``: of the stage at hand, set before anything is told."""

    tree: Tree
    log: LogView
    words: OwnWords
    compilers: Compilers
    clock: Clock
    window: Window = field(init=False)
    _gpu_bytes: int | None = None
    _step: Progress | None = None

    @classmethod
    def of(cls, tree: Tree, log: LogView, compilers: Compilers, target: Target, clock: Clock) -> Lookout:
        """That of a process that has just been started."""
        return cls(tree, log, OwnWords(log, asked_paths(target.probes)), compilers, clock)

    def told(self, progress: Progress) -> bool:
        """True for a step that was not told before; it is taken into account, and so is an answer "not yet"."""
        now_s = self.clock.now()
        if progress.sign == "not_yet":
            self.window = self.window.put_off(now_s)
        if progress.sign != "step" or progress == self._step:
            return False
        self._step, self.window = progress, self.window.noted(now_s)
        return True

    @property
    def still_s(self) -> float:
        """Seconds since there was progress."""
        return self.clock.now() - self.window.progress_s

    async def until_still(self, open_window: Callable[[Sample], Window], wider: LookWider) -> Stall:
        """What is to be told of the stage, once its window has ended."""
        self.window, looked_s = open_window(self.sample()), self.clock.now() - WIDER_S
        while (now_s := self.clock.now()) < self.window.deadline_s:
            if now_s - looked_s >= WIDER_S:
                self._gpu_bytes, looked_s = await wider(), now_s
                self.window = self.window.held_up(self.clock.now())
            await self.clock.sleep(max(0.0, min(SAMPLE_S, self.window.deadline_s - self.clock.now())))
            self.window = self.window.looked(self.sample())
        return self.window.stall(self.clock.now())

    def sample(self) -> Sample:
        """What is to be seen now. Its log is what it writes too, which says less than its words."""
        usage, compilers = self.tree.usage(), self.compilers.count()
        logged_bytes = self.log.written_bytes()
        return Sample(
            self.clock.now(), self.words.count(), usage.resident_bytes, usage.cpu_s,
            usage.io_bytes - logged_bytes, usage.disk_bytes - logged_bytes,
            self._gpu_bytes, compilers, self.compilers.running is not None,
        )  # fmt: skip
