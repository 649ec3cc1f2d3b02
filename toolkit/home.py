"""Where coexist keeps what it makes: engines, state of deployments, caches, references."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.files import usable_folder


@dataclass(frozen=True)
class Home:
    """``COEXIST_HOME``, or ``coexist`` in the user's XDG data folder.

    ``caches``: services' caches lie elsewhere (``COEXIST_CACHE``): they want a local disk.
    """

    root: Path
    caches: Path | None = None

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """The home that the environment names.

        Raises: ToolkitError when it begins in a home directory that nobody knows.
        """
        caches = environ.get("COEXIST_CACHE")
        local = _absolute(caches, "COEXIST_CACHE") if caches else None
        if chosen := environ.get("COEXIST_HOME"):
            return cls(_absolute(chosen, "COEXIST_HOME"), local)
        data = environ.get("XDG_DATA_HOME") or "~/.local/share"
        return cls(_absolute(data, "COEXIST_HOME") / "coexist", local)

    def prepared(self) -> Home:
        """This home, once its folders are there and take files.

        Raises: ToolkitError.
        """
        usable_folder(self.root, "COEXIST_HOME")
        if self.caches is not None:
            usable_folder(self.caches, "COEXIST_CACHE")
        return self

    @property
    def references(self) -> Path:
        return self.root / "references"

    @property
    def contexts(self) -> Path:
        """Sizes of CUDA contexts that were measured on this host."""
        return self.root / "host" / "contexts.json"

    @property
    def states(self) -> Path:
        return self.root / "state"

    def state(self, deployment: str) -> Path:
        return self.states / deployment

    def cache(self, deployment: str, service: str) -> Path:
        """Caches of a service, a folder for each environment it ran in."""
        return (self.caches or self.root / "cache") / deployment / service

    def history(self, deployment: str, service: str) -> Path:
        """How long its starts took."""
        return self.root / "history" / deployment / f"{service}.json"

    def rank_logs(self, deployment: str, service: str) -> Path:
        """Where the ranks of a service write a log each."""
        return self.state(deployment) / "logs" / service

    def run(self, deployment: str, service: str) -> Path:
        """The files that a service is started with."""
        return self.state(deployment) / "run" / service

    def bench(self, deployment: str) -> Path:
        """What measurements of an unfinished bench are kept in."""
        return self.root / "bench" / deployment

    def bench_caches(self, deployment: str) -> Path:
        """The caches of the boots that are measured."""
        return self.bench(deployment) / "caches" if self.caches is None else self.caches / ".bench" / deployment


def _absolute(path: str, variable: str) -> Path:
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:  # a container's user without an entry in /etc/passwd, or a name that is nobody's
        hint = f"Set {variable} to a folder that you can write to."
        raise ToolkitError("this user's home directory is not known", path, hint, code="no_home") from None
