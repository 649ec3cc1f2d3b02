"""What a person should know of what a service sets itself, whatever its program is. Pure."""

from __future__ import annotations

from toolkit.config.models import Service
from toolkit.runtimes.environment import PINNING

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def notes_of(service: Service) -> tuple[str, ...]:
    """A sentence for each variable that works against the plan, and one when others than this machine can reach it."""
    made = [f"env: {variable} may fight the planned CPU mask" for variable in PINNING if variable in service.env]
    if service.host not in LOOPBACK:
        made.append(f"listens on '{service.host}': whoever reaches this machine can use it")
    return tuple(made)
