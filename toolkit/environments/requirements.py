"""Requirements of distributions, judged for the environment's own Python and against what is installed there."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from toolkit.environments.model import Conflict, Distribution, Layout, Problem

_PYTHON_MARKER = re.compile(r"python_(?:full_)?version")


def marker_environment(layout: Layout) -> dict[str, str]:
    """The variables of environment markers for a Python on Linux; its version is ``0`` where it is unknown."""
    version = layout.python_version or "0"
    machine = layout.machine or "x86_64"
    return {
        "implementation_name": "cpython",
        "implementation_version": version,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": version if version.count(".") > 1 else f"{version}.0",
        "python_version": layout.release or "0",
        "sys_platform": "linux",
    }


@functools.lru_cache(maxsize=16384)
def parse(text: str) -> Requirement | None:
    """The requirement in a text; None: it is none."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def active(distribution: Distribution, markers: Mapping[str, str], extras: Iterable[str] = ()) -> Iterator[Requirement]:
    """The requirements that hold in an environment with these markers, for the distribution with these extras."""
    wanted = ("", *extras)
    for text in distribution.requires:
        # Most requirements belong to extras nobody asked for; parsing them all takes longer than all else here.
        if len(wanted) == 1 and _only_for_an_extra(text):
            continue
        requirement = parse(text)
        if requirement is None:
            continue
        if requirement.marker is None or any(_holds(requirement.marker, markers, extra) for extra in wanted):
            yield requirement


def _holds(marker: Marker, markers: Mapping[str, str], extra: str) -> bool:
    if markers["python_version"] == "0" and _PYTHON_MARKER.search(str(marker)):
        return False  # for which Python is not known, and a guess would accuse a whole environment
    try:
        return marker.evaluate({**markers, "extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion):
        return False


def _only_for_an_extra(text: str) -> bool:
    return "extra ==" in text and " or " not in text


def conflicts(distributions: Iterable[Distribution], layout: Layout) -> tuple[Conflict, ...]:
    """Every requirement, extras followed, that is not met; Requires-Python too. Sorted by who requires it."""
    installed = {distribution.name: distribution for distribution in distributions}
    markers = marker_environment(layout)
    unmet: dict[tuple[str, str], Conflict] = {}
    for name, extra in _asked_for(installed, markers):
        distribution = installed[name]
        for requirement in active(distribution, markers, (extra,) if extra else ()):
            if not _met(requirement, installed):
                other = str(canonicalize_name(requirement.name))
                found = installed[other].version if other in installed else None
                unmet.setdefault((name, str(requirement)), Conflict(name, str(requirement), other, found))
    python = (conflict for d in installed.values() if (conflict := _python_conflict(d, layout)))
    return tuple(sorted((*unmet.values(), *python), key=lambda c: (c.required_by, c.requirement)))


def _asked_for(installed: Mapping[str, Distribution], markers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each distribution on its own, and once more for each extra that another one asks of it."""
    waiting = [(name, "") for name in installed]
    seen = set(waiting)
    while waiting:
        name, extra = waiting.pop()
        yield name, extra
        for requirement in active(installed[name], markers, (extra,) if extra else ()):
            other = str(canonicalize_name(requirement.name))
            for wanted in requirement.extras:
                item = (other, str(canonicalize_name(wanted)))
                if other in installed and item not in seen:
                    seen.add(item)
                    waiting.append(item)


def _met(requirement: Requirement, installed: Mapping[str, Distribution]) -> bool:
    """Pre-releases count, as they do for an installer that finds them in place; an unreadable version is not judged."""
    found = installed.get(str(canonicalize_name(requirement.name)))
    if found is None:
        return False
    return satisfies(found.version, requirement.specifier)


def satisfies(version: str | None, specifier: SpecifierSet) -> bool:
    """Whether a version is in a range; one that is no version is not judged."""
    try:
        return specifier.contains(Version(version or ""), prereleases=True)
    except InvalidVersion:
        return True


def _python_conflict(distribution: Distribution, layout: Layout) -> Conflict | None:
    stated, python = distribution.requires_python, layout.python_version
    if not stated or not python:
        return None
    try:
        # 3.10 alone would fail '>=3.10.1' only because the last number is unknown.
        known = python if python.count(".") > 1 else f"{python}.99"
        met = SpecifierSet(stated).contains(Version(known), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return None
    return None if met else Conflict(distribution.name, stated, "python", python)


def unreadable(distributions: Iterable[Distribution]) -> Iterator[Problem]:
    """Requirements that packaging can't read, and versions that are none."""
    for distribution in distributions:
        for text in distribution.requires:
            if not _only_for_an_extra(text) and parse(text) is None:
                yield Problem("requirement_invalid", distribution.name, distribution.metadata, text[:200])
        try:
            Version(distribution.version or "")
        except InvalidVersion:
            detail = f"version {distribution.version!r}"
            yield Problem("metadata_broken", distribution.name, distribution.metadata, detail)
