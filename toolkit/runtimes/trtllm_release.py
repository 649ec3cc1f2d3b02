"""How one release of TensorRT-LLM serves: its command, its options file, its paths and variables. From the facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from toolkit.errors import ToolkitError
from toolkit.facts import load, serve_options
from toolkit.facts.model import FIRM, within
from toolkit.facts.options import OptionTable, serve_tables

ENGINE, PYTORCH = "engine", "pytorch"
OPTIONS_FILE = ("--config", "--extra_llm_api_options")


@dataclass(frozen=True)
class Release:
    """A release that serves. ``assumed``: nobody said which one is installed, so the newest that was read stands in."""

    version: str
    table: OptionTable
    assumed: bool = False

    def has(self, name: str) -> bool:
        """Whether trtllm-serve has an option of this name."""
        return self.table.find(name) is not None

    @property
    def options_file(self) -> str | None:
        """The option that names the file with arguments of the LLM API; None: there is none."""
        return next((name for name in OPTIONS_FILE if self.has(name)), None)

    @property
    def subcommand(self) -> tuple[str, ...]:
        """The word between program and model."""
        return ("serve",) if within(self.version, serve_tables()["subcommand"]["versions"]) else ()

    @property
    def modes(self) -> tuple[str, ...] | None:
        """``engine`` and ``pytorch``, as far as it has them; None: no source says."""
        row = load().trtllm(self.version)
        fact = row.fact("modes") if row else None
        return tuple(fact.value) if fact else None

    def backend(self, mode: str) -> str | None:
        """The value of ``--backend`` that gives this mode; None: the mode is the default.

        Raises: LookupError when there is no such value.
        """
        option = self.table.find("--backend")
        default = option.default if option else None
        if mode == (PYTORCH if default == PYTORCH else ENGINE):
            return None
        words = [PYTORCH] if mode == PYTORCH else serve_tables()["engine_backends"]["words"]
        choices = (option.choices or ()) if option else ()
        found = next((word for word in words if word in choices), None)
        if found is None:
            raise LookupError(mode)
        return str(found)

    def llm_arg(self, key: str) -> Mapping[str, Any] | None:
        """The row of an argument in the options file; None: the release does not have it there."""
        if self.options_file is None:
            return None
        return next((row for row in self._rows("llm_args") if row["key"] == key), None)

    def answers(self, path: str) -> bool:
        """Whether its server has this HTTP path."""
        return any(row["path"] == path for row in self._rows("endpoints"))

    @property
    def variables(self) -> dict[str, str]:
        """The variables it reads that coexist sets."""
        return {row["name"]: row["value"] for row in self._rows("environment")}

    @property
    def tells_fallback(self) -> bool:
        """Whether its log says that an attention backend was not taken."""
        return within(self.version, serve_tables()["attention_fallback"]["versions"]) is True

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        yield from (row for row in serve_tables()[table] if within(self.version, row["versions"]))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of how firm this is."""
        if self.assumed:
            unknown = f"which TensorRT-LLM will serve is not known: this is the command of {self.version}"
            return (f"{unknown}; 'environments.NAME.versions: {{tensorrt-llm: V}}' says it",)
        if self.table.status in FIRM:
            return ()
        text = f"options of trtllm-serve {self.version} are {self.table.status}: read at {self.table.read_at}"
        return (f"{text} ({'; '.join(self.table.source)})",)


def release(version: str | None, where: str) -> Release:
    """The release with this version; None: the newest that was read.

    Raises: ToolkitError when it is none, or has no trtllm-serve.
    """
    if version is None:
        newest = newest_release()
        table = serve_options(newest)
        if table is not None:
            return Release(newest, table, assumed=True)
    try:
        public = Version(version or "").public
    except InvalidVersion:
        hint = "Write it as pip shows it, such as 'tensorrt-llm 1.2.0'."
        raise ToolkitError(f"'{version}' is no version of TensorRT-LLM", where, hint, code="trtllm_version") from None
    table = serve_options(public)
    if table is None:
        hint = f"It comes with {first_release()}. Use that or a newer one, or runtime 'triton' for its engines."
        raise ToolkitError(f"TensorRT-LLM {version} has no trtllm-serve", where, hint, code="no_trtllm_serve")
    return Release(public, table)


def releases() -> tuple[str, ...]:
    """The releases whose trtllm-serve was read, oldest first."""
    rows = (row for row in serve_tables()["tables"] if row["command"] == "serve")
    return tuple(str(row["versions"]).removeprefix("==") for row in rows)


def first_release() -> str:
    """The first release with trtllm-serve."""
    return releases()[0]


def newest_release() -> str:
    """The newest release whose own text was read, and which has both modes."""
    known = [each for each in releases() if (table := serve_options(each)) and table.status != "inferred"]
    return known[-1]
