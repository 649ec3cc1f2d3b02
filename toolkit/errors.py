"""The one error type that reaches a user: what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ToolkitError(Exception):
    """Something a person must change.

    ``what`` is one sentence, ``where`` a file, key path or host object, ``hint`` the next step.
    ``details`` travels into the JSON error (for example ``resource``, ``needed``, ``available``).
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        where: str | None = None,
        hint: str | None = None,
        *,
        code: str = "error",
        **details: Any,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint
        self.code = code
        self.details = details

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        stop = "" if self.what.endswith((".", "?", "!")) else "."
        hint = f"{stop} {self.hint}" if self.hint else ""
        return f"{place}{self.what}{hint}"

    def document(self) -> dict[str, Any]:
        """The error as JSON, of which ``of_document`` makes it again."""
        return {"code": self.code, "what": self.what, "where": self.where, "hint": self.hint, **self.details}

    def at(self, where: str | None) -> ToolkitError:
        """The same fault, told of another place."""
        return ToolkitError(self.what, where, self.hint, code=self.code, **self.details)


class UsageError(ToolkitError):
    """The command line itself is wrong."""

    exit_code = 2


class NotReadyInTimeError(ToolkitError):
    """The deployment was not ready before its time-out."""

    exit_code = 4


class ManyFaultsError(ToolkitError):
    """All faults of one file, told at once; ``errors`` keeps file order."""

    def __init__(self, errors: tuple[ToolkitError, ...]) -> None:
        first = errors[0]
        count = len(errors)
        what = first.what if count == 1 else f"{count} faults"
        details = {**first.details} if count == 1 else {}
        details["faults"] = [{"what": e.what, "where": e.where, "hint": e.hint} for e in errors]
        super().__init__(
            what,
            first.where if count == 1 else None,
            first.hint if count == 1 else None,
            code=first.code,
            **details,
        )
        self.errors = errors

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def of_document(error: Mapping[str, Any]) -> ToolkitError:
    """The error that another coexist told as JSON."""
    if len(faults := error.get("faults", ())) > 1:
        return ManyFaultsError(tuple(ToolkitError(**fault, code=error["code"]) for fault in faults))
    return ToolkitError(**error)
