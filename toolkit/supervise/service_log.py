"""Keeps the logs of one service: marks when they grow, rotates them when they are long, remembers the last lines."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.files import disk_errors
from toolkit.supervise import log_times, logs
from toolkit.supervise.logs import LogFile, LogView

RECENT_BYTES = 64 * 1024


@dataclass
class Recent:
    """The last bytes of one log file, in memory."""

    log: LogFile
    offset: int
    kept: bytes = b""

    def look(self) -> None:
        """Takes in what was written since, as far as it is among the last."""
        end = self.log.end()
        start = max(self.offset, end - RECENT_BYTES) if end >= self.offset else 0
        for piece in self.log.pieces(start):
            start += len(piece)
            self.kept = (self.kept + piece)[-RECENT_BYTES:]
            if start >= end:  # a flood is not followed to its end
                break
        self.offset = start


@dataclass
class ServiceLog:
    """All methods read and write files: not for the event loop. ``now_s``: Unix seconds that never run backwards."""

    path: Path
    now_s: Callable[[], float]
    _ends: dict[str, int] = field(default_factory=dict)
    _recent: dict[str, Recent] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: tuple[int, int] = (0, 0)

    def begin_run(self) -> None:
        """Notes where this run of the deployment begins, so that it can be told from earlier ones.

        Not for a service that runs already, from before: its output belongs to the run it was started in.
        """
        with self._lock, contextlib.suppress(OSError):  # without the mark earlier runs are shown too
            self._set_ranks_aside()
            self._ends[""] = LogFile(self.path).end()
            log_times.add(self.path, ["run", self.now_s(), self._ends[""]])

    def begin_attempt(self, rank_logs: bool) -> LogView:
        """The view of an attempt that starts now; ``rank_logs``: the folder of its ranks is there, and empty.

        Raises: ToolkitError when the disk does not let us.
        """
        with self._lock, disk_errors(self.path, f"cannot prepare the logs of '{self.path.stem}'"):
            self._set_ranks_aside()
            if rank_logs:
                logs.rank_folder(self.path).mkdir(mode=0o700)
            return self._view(LogFile(self.path).end())

    def continue_attempt(self, start_bytes: int) -> LogView:
        """The view of an attempt that runs already, whose log began there."""
        with self._lock:
            return self._view(start_bytes)

    def _view(self, start_bytes: int) -> LogView:
        self._recent = {"": Recent(LogFile(self.path), start_bytes)}
        return LogView(self.path, start_bytes, self.recent)

    def _set_ranks_aside(self) -> None:
        """Launchers begin their files anew at the same names: those of the attempt before are kept beside."""
        folder = logs.rank_folder(self.path)
        if folder.is_dir():
            shutil.rmtree(logs.previous_ranks(self.path), ignore_errors=True)
            folder.rename(logs.previous_ranks(self.path))
            log_times.forget_ranks(self.path)
        self._ends = {file: end for file, end in self._ends.items() if not file}

    def look(self) -> None:
        """Marks, remembers and rotates. A disk that refuses stops nothing: it is tried again when more comes."""
        with self._lock, contextlib.suppress(OSError):
            if not self._changed():
                return
            files = self._files()
            self._mark(files)
            for name, path in files.items():
                self._recent.setdefault(name, Recent(LogFile(path), 0)).look()
                if logs.is_long(path):
                    logs.punch(path) if name else logs.rotate(path)

    def _changed(self) -> bool:
        """Whether there is anything to do; most services are silent most of the time."""
        seen, self._seen = self._seen, logs.signature(self.path)
        return self._seen != seen or logs.rank_folder(self.path).is_dir()

    def _files(self) -> dict[str, Path]:
        folder = logs.rank_folder(self.path)
        return {"": self.path, **{str(path.relative_to(folder)): path for path in logs.rank_files(self.path)}}

    def _mark(self, files: dict[str, Path]) -> None:
        ends = {name: LogFile(path).end() for name, path in files.items()}
        grown = {name: end for name, end in ends.items() if end != self._ends.get(name, 0)}
        self._ends.update(ends)
        if grown:
            now_s = round(self.now_s(), 3)
            log_times.add(self.path, *(["mark", now_s, end, name] for name, end in grown.items()))

    def recent(self) -> bytes:
        """The last lines of the attempt, one file after another, as far as they were seen."""
        return b"".join(each.kept for each in tuple(self._recent.values()))
