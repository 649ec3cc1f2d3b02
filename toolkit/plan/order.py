"""Who starts after whom: waves in which services on one device start one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from toolkit.errors import ToolkitError
from toolkit.names import nearest

Edges = Mapping[str, Collection[str]]


def refuse_unknown(after: Edges, requires: Edges) -> None:
    """Raises ToolkitError when a service waits for one that the deployment does not have."""
    for key, edges in (("after", after), ("requires", requires)):
        for name, others in edges.items():
            unknown = next((other for other in others if other not in edges), None)
            if unknown is not None:
                near = nearest(unknown, edges)
                hint = f"Nearest: '{near}'." if near else None
                where = f"services.{name}.{key}"
                raise ToolkitError(f"no service is named '{unknown}'", where, hint, code="unknown_service")


def refuse_cycles(after: Edges, requires: Edges) -> None:
    """Raises ToolkitError when services wait for each other in a circle, by either key or by both together."""
    for key, edges in (("after", after), ("requires", requires), ("after", union(after, requires))):
        ring = _ring(edges)
        if ring:
            raise ToolkitError(
                f"services wait for each other in a circle: {' -> '.join((*ring, ring[0]))}",
                f"services.{ring[0]}.{key}",
                "Break it at one place.",
                code="cycle",
                services=list(ring),
            )


def union(a: Edges, b: Edges) -> dict[str, tuple[str, ...]]:
    """For each name, whoever it waits for by one or the other."""
    return {name: tuple(dict.fromkeys((*a[name], *b.get(name, ())))) for name in a}


def _ring(edges: Edges) -> tuple[str, ...]:
    """A circle in the order of waiting, or nothing."""
    done: set[str] = set()
    for name in edges:
        way = _walk(name, edges, done, ())
        if way:
            return way
    return ()


def _walk(name: str, edges: Edges, done: set[str], way: tuple[str, ...]) -> tuple[str, ...]:
    if name in way:
        return way[way.index(name) :]
    if name in done:
        return ()
    for other in edges.get(name, ()):
        ring = _walk(other, edges, done, (*way, name))
        if ring:
            return ring
    done.add(name)
    return ()


def sequence(names: Sequence[str], waits: Edges) -> tuple[str, ...]:
    """All names, each behind those it waits for, else in the given order. The edges have no circle."""
    placed: dict[str, None] = {}
    while len(placed) < len(names):
        free = (n for n in names if n not in placed and all(other in placed for other in waits.get(n, ())))
        placed[next(free)] = None
    return tuple(placed)


def waves(
    names: Sequence[str], after: Edges, requires: Edges, on_devices: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """The wave of each service: behind those it comes after, and behind whoever has its device before it.

    ``on_devices``: the devices of each service. Sharers start in the order of the file where no key says otherwise.
    """
    ordered = sequence(names, union(after, requires))
    wave: dict[str, int] = {}
    for i, name in enumerate(ordered):
        sharers = [other for other in ordered[:i] if set(on_devices[other]) & set(on_devices[name])]
        wave[name] = max((wave[other] + 1 for other in (*after.get(name, ()), *sharers)), default=0)
    return wave
