"""The GPUs that a CUDA_VISIBLE_DEVICES list leaves of a machine's."""

from __future__ import annotations

from toolkit.host.model import Gpu

_NAME = "CUDA_VISIBLE_DEVICES"


def narrow(gpus: tuple[Gpu, ...], visible: str | None, device_order: str | None) -> tuple[tuple[Gpu, ...], list[str]]:
    """GPUs that the list names, and notes; ``visible`` None: no list, all of them.

    As in CUDA, the list ends at its first entry that names nothing.
    """
    if visible is None or not gpus:
        return gpus, []
    entries = [entry.strip() for entry in visible.split(",")] if visible.strip() else []
    if _counts_in_unknown_order(gpus, entries, device_order):
        why = "counts GPUs fastest first, which the driver doesn't tell"
        return (), [f"{_NAME}={visible} {why}; no GPU is used. Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs"]
    found: list[Gpu] = []
    for at, entry in enumerate(entries):
        match = _find(gpus, entry)
        if match is None:
            return _result(gpus, found, visible, [_unknown(entry, entries[at + 1 :])])
        found.append(match)
    return _result(gpus, found, visible, [])


def _result(
    gpus: tuple[Gpu, ...], found: list[Gpu], visible: str, notes: list[str]
) -> tuple[tuple[Gpu, ...], list[str]]:
    merged = tuple(picked for gpu in gpus if (picked := _merged(gpu, found)) is not None)
    said = f"{_NAME}={visible} leaves {len(merged)} of {len(gpus)} GPUs"
    return merged, [*notes, said] if merged != gpus else notes


def _merged(gpu: Gpu, found: list[Gpu]) -> Gpu | None:
    """The GPU with all of its slices that were named."""
    parts = [part for part in found if part.index == gpu.index]
    if not parts or gpu.mig is None:
        return parts[0] if parts else None
    named = {device.uuid for part in parts for device in part.mig or ()}
    return gpu.model_copy(update={"mig": tuple(device for device in gpu.mig if device.uuid in named)})


def _find(gpus: tuple[Gpu, ...], entry: str) -> Gpu | None:
    """The one GPU (or its one slice) of an index, a UUID, or the beginning of one."""
    if entry.isdecimal():
        # Indices count from 0 in this list's own order: nvidia-smi's, with CUDA_DEVICE_ORDER=PCI_BUS_ID.
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if entry.startswith("MIG-"):
        slices = [
            gpu.model_copy(update={"mig": (device,)})
            for gpu in gpus
            for device in gpu.mig or ()
            if device.uuid.startswith(entry)
        ]
        return slices[0] if len(slices) == 1 else None
    matches = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _counts_in_unknown_order(gpus: tuple[Gpu, ...], entries: list[str], device_order: str | None) -> bool:
    models = {gpu.name for gpu in gpus}
    return len(models) > 1 and device_order != "PCI_BUS_ID" and any(entry.isdecimal() for entry in entries)


def _unknown(entry: str, rest: list[str]) -> str:
    after = f"; what follows ({','.join(rest)}) doesn't count either, as in CUDA" if rest else ""
    return f"{_NAME} names '{entry}', which is no GPU here{after}"
