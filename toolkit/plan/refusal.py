"""The one shape of 'this does not fit': which resource, how much is needed, how much there is, and whose demands."""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.errors import ToolkitError

MOST_LISTED = 8


def does_not_fit(
    what: str,
    *,
    resource: str,
    needed: int,
    available: int,
    services: Iterable[str],
    key: str | None = None,
    hint: str | None = None,
) -> ToolkitError:
    """An error that names the resource and the amounts; ``key`` is the key at fault (``gpus``, ``cpus``, …)."""
    names = list(services)
    where = f"services.{names[0]}.{key}" if names and key else None
    return ToolkitError(
        what,
        where,
        hint,
        code="does_not_fit",
        resource=resource,
        needed=needed,
        available=available,
        services=names,
    )


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``; of very many the first ones and how many more."""
    every = list(names)
    if len(every) > MOST_LISTED:
        every = [*every[: MOST_LISTED - 1], f"{len(every) - MOST_LISTED + 1} others"]
    *most, last = every or [""]
    return f"{', '.join(most)} and {last}" if most else last


def count(number: int, noun: str) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
