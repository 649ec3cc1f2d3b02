"""What one CUDA context takes here: measured once in a child, kept by driver and GPU model."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.files import json_object, write_atomic
from toolkit.host import context_child, gpu_use
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Gpu, MigDevice
from toolkit.units import GIB, MIB

CHILD = Path(context_child.__file__)
Measure = Callable[[str], "int | None"]
Alone = Callable[[str], AbstractContextManager[bool]]
_SCHEMA = 1
_ROUNDS = 3
_STILL_BYTES = 8 * MIB  # use that moved more than this between before and after was somebody else's
_START_S, _GONE_S, _POLL_S = 30.0, 5.0, 0.05
_ROOM_BYTES = 4 * GIB


class Kept:
    """What ``probe`` asks for the size of a context; ``file`` keeps it between runs.

    ``alone(uuid)`` is a block in which nobody starts on that device, or False: now is no time to measure.
    """

    def __init__(self, file: Path, alone: Alone = lambda _: nullcontext(True), measure: Measure | None = None) -> None:
        self._file, self._alone, self._measure = file, alone, measure or measure_on

    def __call__(self, driver: str | None, gpus: tuple[Gpu, ...]) -> int | None:
        """Bytes of the largest context on these GPUs; None: not every model could be measured."""
        models = _models(driver, gpus)
        known = self._read()
        found = {key: known.get(key) or self._measured(gpus, key, driver) for key in models}
        sizes = {key: size for key, size in found.items() if size}
        if sizes.items() - known.items():
            self._write({**known, **sizes})
        return max(sizes.values()) if sizes and len(sizes) == len(models) else None

    def _measured(self, gpus: tuple[Gpu, ...], key: str, driver: str | None) -> int | None:
        uuid = pick([(gpu, part) for gpu, part in _devices(gpus) if _key(driver, gpu, part) == key])
        if uuid is None:
            return None
        with self._alone(uuid) as ours:
            return self._measure(uuid) if ours else None

    def _read(self) -> dict[str, int]:
        """What was measured; a damaged file is written whole again."""
        found = json_object(self._file) or {}
        sizes = found["bytes"] if found.get("schema") == _SCHEMA else {}
        return {key: size for key, size in sizes.items() if isinstance(size, int)}

    def _write(self, sizes: Mapping[str, int]) -> None:
        with suppress(ToolkitError, OSError):  # a closed disk costs a second at the next start, no more
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            document = {"schema": _SCHEMA, "bytes": dict(sorted(sizes.items()))}
            write_atomic(self._file, json.dumps(document, indent=1) + "\n")


def _devices(gpus: tuple[Gpu, ...]) -> Iterator[tuple[Gpu, Gpu | MigDevice]]:
    for gpu in gpus:
        yield from ((gpu, part) for part in (gpu.mig if gpu.mig is not None else (gpu,)))


def _key(driver: str | None, gpu: Gpu, part: Gpu | MigDevice) -> str:
    profile = f" MIG {part.profile}" if isinstance(part, MigDevice) else ""
    return f"driver {driver}, {gpu.name}{profile}"


def _models(driver: str | None, gpus: tuple[Gpu, ...]) -> list[str]:
    return list(dict.fromkeys(_key(driver, gpu, part) for gpu, part in _devices(gpus)))


def pick(devices: list[tuple[Gpu, Gpu | MigDevice]]) -> str | None:
    """UUID of the device to measure on: an idle one, else one that is shared anyway and has room; None: none will do.

    Never one in a mode that lets one process in, while somebody holds it.
    """
    idle = [part.uuid for gpu, part in devices if not _holders(part) and not _mode(gpu).startswith("prohibited")]
    shared = [part.uuid for gpu, part in devices if _mode(gpu) == "default" and _free(part) >= _ROOM_BYTES]
    return next(iter((*idle, *shared)), None)


def _mode(gpu: Gpu) -> str:
    return (gpu.compute_mode or "unknown").lower()


def _holders(part: Gpu | MigDevice) -> bool:
    return any(holder.name != "driver" for holder in part.holders)


def _free(part: Gpu | MigDevice) -> int:
    return 0 if part.memory_bytes is None or part.used_bytes is None else part.memory_bytes - part.used_bytes


def measure_on(uuid: str, read: Callable[[], tuple[DeviceUse, ...]] = gpu_use.read, child: Path = CHILD) -> int | None:
    """Bytes by which use of the device grows while a child holds a context there; None: it could not be told."""
    for _ in range(_ROUNDS):
        before = _used(read(), uuid)
        with holding(uuid, child) as held:
            during = _used(read(), uuid) if held else None
        if before is None or during is None:
            return None
        if _is_back(before, uuid, read) and during > before:
            return during - before
    return None


def _used(uses: tuple[DeviceUse, ...], uuid: str) -> int | None:
    return next((use.used_bytes for use in uses if use.uuid == uuid), None)


def _is_back(before_bytes: int, uuid: str, read: Callable[[], tuple[DeviceUse, ...]]) -> bool:
    """Whether use returns to what it was; if not, somebody else came or went meanwhile."""
    deadline_s = time.monotonic() + _GONE_S
    while True:
        now = _used(read(), uuid)
        if now is not None and abs(now - before_bytes) <= _STILL_BYTES:
            return True
        if time.monotonic() >= deadline_s or (now is not None and now < before_bytes):
            return False
        time.sleep(_POLL_S)


@contextmanager
def holding(uuid: str, child: Path = CHILD) -> Iterator[bool]:
    """A block during which a child holds a context on the device; False: it got none."""
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    env = {**inherited, "CUDA_VISIBLE_DEVICES": uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    pipe = subprocess.PIPE
    argv = [sys.executable, "-I", "-S", str(child)]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env) as process:
        try:
            yield _said_held(process)
        finally:
            process.kill()


def _said_held(process: subprocess.Popen[bytes]) -> bool:
    if process.stdout is None:
        return False
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    return bool(ready) and process.stdout.readline() == b"held\n"
