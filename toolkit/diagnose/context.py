"""What a plan and a host record say about one service, from their JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.diagnose.model import Context, Device, Holder

_MIB = 1024**2


def context_of(
    service: str | None, plan: Mapping[str, Any] | None = None, host: Mapping[str, Any] | None = None
) -> Context:
    """The context of ``service``; ``plan`` as ``coexist plan --json`` prints it, ``host`` as ``coexist host --record``.

    What the documents do not hold stays unknown.
    """
    devices = tuple(_device(gpu) for gpu in (host or {}).get("gpus", ()))
    mine = next((each for each in (plan or {}).get("services", ()) if each.get("name") == service), None)
    if mine is None:
        return Context(service, devices=devices)
    gpus = mine.get("gpus", ())
    budgets = [gpu["budget_mib"] for gpu in gpus if gpu.get("budget_mib")]
    lines = [line for line in (plan or {}).get("ledger", ()) if line.get("gpu") in {gpu.get("uuid") for gpu in gpus}]
    return Context(
        service,
        min(budgets) * _MIB if budgets else None,
        min((line["total_mib"] * _MIB for line in lines), default=None),
        tuple(holder for line in lines for holder in _holders(line)),
        devices,
        tuple(gpu["index"] for gpu in gpus if gpu.get("index") is not None),
    )


def _device(gpu: Mapping[str, Any]) -> Device:
    return Device(gpu["index"], gpu.get("uuid"), gpu.get("compute_capability"))


def _holders(line: Mapping[str, Any]) -> list[Holder]:
    return [Holder(each.get("service"), each["mib"] * _MIB) for each in line.get("reserved", ())]
