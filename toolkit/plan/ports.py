"""A port for every service: the given ones, checked, and the others counted up from a base."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.config.models import Deployment
from toolkit.config.references import meet
from toolkit.errors import ToolkitError
from toolkit.plan.refusal import does_not_fit

FIRST_PORT = 8001
LAST_PORT = 65535


def assign(deployment: Deployment, taken: Mapping[int, str]) -> dict[str, int]:
    """The port of each service; ``taken``: ports that are in use on the host, and by whom.

    Raises: ToolkitError when two services ask for one port, or one asks for a port that is taken.
    """
    busy = dict(taken)
    if deployment.control_port:
        busy.setdefault(deployment.control_port, "coexist's control port")
    given = {name: service.port for name, service in deployment.services.items() if service.port is not None}
    _refuse_taken(given, busy)
    _refuse_twice(deployment, given)
    spare = (port for port in range(FIRST_PORT, LAST_PORT + 1) if port not in busy and port not in given.values())
    missing = [name for name in deployment.services if name not in given]
    found = dict(zip(missing, spare, strict=False))
    if len(found) < len(missing):
        raise _refusal("no port is left", missing[len(found)])
    return {name: given.get(name) or found[name] for name in deployment.services}


def _refuse_taken(given: Mapping[str, int], busy: Mapping[int, str]) -> None:
    for name, port in given.items():
        if port in busy:
            raise _refusal(f"port {port} is taken by {busy[port]}", name)


def _refuse_twice(deployment: Deployment, given: Mapping[str, int]) -> None:
    seen: list[tuple[str, int]] = []
    for name, port in given.items():
        here = deployment.services[name].host
        for other, other_port in seen:
            if port == other_port and meet(here, deployment.services[other].host):
                raise _refusal(f"port {port} is asked for twice, by {other} and {name}", name, 1, other)
        seen.append((name, port))


def _refusal(what: str, name: str, available: int = 0, *others: str) -> ToolkitError:
    """One port too few: each service named needs one."""
    return does_not_fit(
        what,
        resource="port",
        needed=available + 1,
        available=available,
        services=[name, *others],
        key="port",
        hint="Choose another, or leave 'port' out to have one picked.",
    )
