"""How busy each GPU is at this moment, by UUID; the driver refreshes its number only every 1/6 to 1 s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from toolkit.host.nvml import Nvml, NvmlError
from toolkit.host.nvml import load as load_nvml


@contextmanager
def reader(nvml: Nvml | None = None) -> Iterator[Callable[[], Mapping[str, int]]]:
    """A function that reads the utilisation in percent of every GPU that tells it; of none where there is no driver."""
    try:
        library = load_nvml() if nvml is None else nvml
    except NvmlError:
        yield dict
        return
    try:
        yield lambda: _percents(library)
    finally:
        library.close()


def _percents(nvml: Nvml) -> dict[str, int]:
    found: dict[str, int] = {}
    with suppress(NvmlError):
        for index in range(nvml.count()):
            with suppress(NvmlError):
                device = nvml.device(index)
                found[device.uuid()] = device.utilisation_percent()
    return found
