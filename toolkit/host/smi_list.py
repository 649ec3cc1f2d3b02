"""``nvidia-smi -L``: GPUs and their MIG devices with UUIDs."""

from __future__ import annotations

import re
from typing import Any

from toolkit.host.smi_text import ambiguous, excerpt, foreign, with_cuts

_HEX = "[0-9a-fA-F]"
_ID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
# Without a prefix: as the integrated GPUs of Jetson boards print it.
_UUID = rf"\(\s*UUID\s*:\s*(?P<uuid>GPU-{_ID}|MIG-{_ID}|MIG-GPU-{_ID}/\d+/\d+|{_ID}|N/A|\[N/A\])\s*\)"
_GPU = re.compile(rf"\s*GPU\s*(?P<index>\d+)\s*:\s*(?P<name>(?:(?!\(\s*UUID|\bGPU\s*\d+\s*:|\bMIG\s+\d).)+?)\s*{_UUID}")
_MIG = re.compile(rf"\s*MIG\s+(?P<profile>\d\S*)\s+Device\s*(?P<index>\d+)\s*:\s*{_UUID}")
_START = re.compile(r"\s*GPU\s*\d+\s*:")


def looks_like(lines: list[str]) -> bool:
    """Whether a line begins as ``nvidia-smi -L`` prints a GPU, and there are UUIDs: PyTorch lists GPUs without them."""
    return any(_START.match(line) for line in lines) and "(UUID" in "".join(map(str.strip, lines))


def parse(lines: list[str]) -> dict[str, Any]:
    """``gpus[]`` with ``index``, ``name``, ``uuid`` and ``mig[]`` (``profile``, ``index``, ``uuid``).

    Raises: ToolkitError when an entry is cut, two readings are possible, or something else is among the entries.
    """
    filled = [line for line in lines if line.strip()]
    readings: list[list[dict[str, Any]]] = []
    for joined in ("".join(with_cuts(filled)), " ".join(filled)):
        gpus = _entries(joined)
        if gpus is not None and gpus not in readings:
            readings.append(gpus)
    if len(readings) > 1:
        raise ambiguous("list", "a name was cut at the end of a line")
    if not readings:
        raise _refusal(filled)
    _refuse_twins(readings[0])
    return {"kind": "list", "gpus": readings[0]}


def _entries(text: str) -> list[dict[str, Any]] | None:
    """GPUs of the text; None when a part of it is no entry."""
    gpus: list[dict[str, Any]] = []
    at = 0
    while text[at:].strip():
        gpu, mig = _GPU.match(text, at), _MIG.match(text, at)
        if gpu:
            name = " ".join(gpu["name"].split())
            gpus.append({"index": int(gpu["index"]), "name": name, "uuid": _uuid(gpu), "mig": []})
        elif mig and gpus:
            gpus[-1]["mig"].append({"profile": mig["profile"], "index": int(mig["index"]), "uuid": _uuid(mig)})
        match = gpu or (mig if gpus else None)
        if match is None:
            return None
        at = match.end()
    return gpus


def _uuid(match: re.Match[str]) -> str | None:
    return match["uuid"] if "-" in match["uuid"] else None


def _refusal(lines: list[str]) -> Exception:
    for line in lines:
        if not (_GPU.fullmatch(line.rstrip()) or _MIG.fullmatch(line.rstrip())):
            return ambiguous("list", f"'{excerpt(line)}' is no whole entry of a list")
    return foreign("MIG devices without their GPU")


def _refuse_twins(gpus: list[dict[str, Any]]) -> None:
    devices = [*gpus, *(mig for gpu in gpus for mig in gpu["mig"])]
    uuids = [device["uuid"] for device in devices if device["uuid"]]
    if len(set(uuids)) != len(uuids):
        raise ambiguous("list", "a UUID is listed twice")
    for group in (gpus, *(gpu["mig"] for gpu in gpus)):
        if len({device["index"] for device in group}) != len(group):
            raise ambiguous("list", "an index is listed twice")
