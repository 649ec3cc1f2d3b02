"""Faults of services told of their place in the deployment's file, those of all services at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from toolkit.config.load import LoadedDeployment
from toolkit.errors import ManyFaultsError, ToolkitError

T = TypeVar("T")
_KEY_PATH = re.compile(r"(services|environments|engines)\.[^\s:]+")


def of_services(deployment: LoadedDeployment, ask: Callable[[str], T]) -> dict[str, T]:
    """What ``ask`` gives for each service's name.

    Raises: ManyFaultsError with every fault of every service, at its line of the file.
    """
    faults: list[ToolkitError] = []
    answers = {name: collect(faults, partial(_ask, deployment, ask, name)) for name in deployment.model.services}
    if faults:
        raise ManyFaultsError(tuple(faults))
    return {name: answer for name, answer in answers.items() if answer is not None}


def collect(faults: list[ToolkitError], ask: Callable[[], T]) -> T | None:
    """What ``ask`` gives; None when it raised, whose faults are then added."""
    try:
        return ask()
    except ManyFaultsError as many:
        faults.extend(many.errors)
    except ToolkitError as fault:
        faults.append(fault)
    return None


def placed(deployment: LoadedDeployment, fault: ToolkitError, otherwise: str | None = None) -> ToolkitError:
    """The same fault at the line of the key path that it names; ``otherwise``: the key where it names no place."""
    if isinstance(fault, ManyFaultsError):
        return ManyFaultsError(tuple(placed(deployment, each, otherwise) for each in fault.errors))
    key = fault.where or otherwise
    if key is None or _KEY_PATH.fullmatch(key) is None:
        return fault
    return fault.at(deployment.where(key))


def _ask(deployment: LoadedDeployment, ask: Callable[[str], T], name: str) -> T:
    try:
        return ask(name)
    except ToolkitError as fault:
        raise placed(deployment, fault, f"services.{name}.runtime") from None
