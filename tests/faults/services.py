"""The deployment of every row: ``web``, which the fault befalls, and ``behind``, which starts after it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.standins import mpirun
from tests.supervise.conftest import tiny
from toolkit.config.models import Restart
from toolkit.runtimes.base import CanaryCheck, Launch
from toolkit.supervise.service import ServiceRun

if TYPE_CHECKING:
    from tests.faults.table import Fault

NAMES = ("web", "behind")
MANY = Restart(max_restarts=50, window="10min")
GPU = {"uuid": "GPU-of-the-fault-table", "index": 0, "budget_mib": 1}


def services(fault: Fault | None, folder: Path, ports: Mapping[str, int]) -> list[ServiceRun]:
    """The services of a row; without a fault: of the supervisor that comes after it."""
    flags = [flag.format(folder=folder) for flag in fault.flags] if fault else []
    # What holds the file open says when another attempt begins beside it; nobody of coexist is asked.
    alone = {name: f"alone={folder}/{name}.alone" for name in NAMES}
    gpus = (GPU,) if fault and fault.on_gpu else ()
    restart = fault.restart if fault else MANY
    web = tiny("web", alone["web"], *flags, port=ports["web"], grace_s=0.5, restart=restart, gpus=gpus)
    behind = tiny("behind", alone["behind"], port=ports["behind"], after=("web",))
    return [replace(web, launch=lambda attempt: _launch(fault, web.launch(attempt), attempt)), behind]


def _launch(fault: Fault | None, launch: Launch, attempt: int) -> Launch:
    if fault is None:
        return launch
    window_s = fault.first_window_s if attempt == 1 else launch.preload_window_s
    probes = replace(launch.probes, canary=CanaryCheck(request=fault.canary))
    return replace(launch, argv=tuple(fault.argv(launch.argv)), probes=probes, preload_window_s=window_s)


def below_mpirun(argv: Sequence[str]) -> list[str]:
    """Two ranks of it."""
    flags = ["-n", "2", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]
    return [sys.executable, "-I", "-S", str(mpirun.__file__), *flags, *argv]


def not_there(_: Sequence[str]) -> list[str]:
    return ["/nowhere/at/all"]


def as_it_is(argv: Sequence[str]) -> Sequence[str]:
    return argv
