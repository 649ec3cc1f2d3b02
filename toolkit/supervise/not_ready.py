"""What a person is told of a deployment that did not become ready. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.errors import NotReadyInTimeError, ToolkitError
from toolkit.supervise.lifecycle import Instance
from toolkit.supervise.state import StateFolder
from toolkit.units import format_duration


def failed(instances: Sequence[Instance], folder: StateFolder, status: dict[str, Any]) -> ToolkitError:
    """Why these required services ended it: the first of them that didn't fail because of another one."""
    first = next((each for each in instances if not _is_consequence(each)), instances[0])
    record = first.last_failure
    summary, advice = (record.failure.summary, record.failure.advice) if record else ("it failed", None)
    return ToolkitError(
        f"'{first.name}' failed: {summary}",
        str(folder.log(first.name)),
        advice or f"'coexist logs {first.name}' shows its output.",
        code=record.failure.kind if record else "service_failed",
        services=[each.name for each in instances],
        **_diagnosis(first),
        status=status,
    )


def in_time(
    timeout_s: float, reasons: Sequence[str], folder: StateFolder, status: dict[str, Any]
) -> NotReadyInTimeError:
    """What it still waited for when the time was over."""
    return NotReadyInTimeError(
        f"not ready after {format_duration(timeout_s)}: {'; '.join(reasons)}",
        str(folder.logs),
        "See 'coexist logs'; '--timeout' gives more time.",
        code="not_ready",
        reasons=list(reasons),
        status=status,
    )


def _diagnosis(instance: Instance) -> dict[str, Any]:
    """Why it failed, as a person is told it."""
    if instance.last_failure is None:
        return {}
    found = instance.last_failure.failure
    names = {"class": found.kind, "verdict": found.verdict, "culprit": found.culprit, "line": found.line}
    return {"diagnosis": names}


def _is_consequence(instance: Instance) -> bool:
    return instance.last_failure is not None and instance.last_failure.failure.kind == "dependency"
