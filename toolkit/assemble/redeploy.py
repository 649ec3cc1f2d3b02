"""A deployment that runs is given another file: what stays stays where it is, the rest is planned around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.assemble import diagnosis, grants, launches, needs
from toolkit.assemble.kept import Running
from toolkit.assemble.launches import Engine, Stage
from toolkit.assemble.reservation import Reservation
from toolkit.errors import ToolkitError
from toolkit.plan.planner import CONTEXT_BYTES
from toolkit.reserve import Grant, Request, Totals
from toolkit.supervise.changes import Changes
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome
from toolkit.supervise.supervisor import Supervisor

Prepare = Callable[[Path, Mapping[str, Running]], Stage]


def requests(stage: Stage) -> dict[str, Request]:
    """What each service of the stage needs of the ledger."""
    context_bytes = stage.host.context_bytes or CONTEXT_BYTES
    host_bytes = needs.host_bytes(stage.deployment, stage.paths)
    return grants.requests(stage.plan, stage.deployment, context_bytes, host_bytes)


def totals(stage: Stage, granted: tuple[Grant, ...]) -> Totals:
    """What there is to grant; nothing that a deployment of this host was granted counts as a stranger's."""
    return grants.totals(stage.host, grants.held(granted))


@dataclass
class Redeployment:
    """The stage that runs now. ``prepare`` makes the next one, and may take long; ``hold`` keeps its engines."""

    stage: Stage
    held: Reservation
    prepare: Prepare
    granted: Callable[[], tuple[Grant, ...]]
    in_use: ExitStack
    hold: Callable[[Engine], Any]

    def diagnose(self, outcome: Outcome) -> Failure:
        """Judges an attempt of the deployment as it is now."""
        return diagnosis.diagnose(self.stage)(outcome)

    async def apply(self, supervisor: Supervisor, config: Path) -> dict[str, Any]:
        """What was different, as JSON; from now on the supervisor runs what the file says.

        Raises: ToolkitError when the file is not sound, or something new does not fit; then nothing has changed.
        """
        stage = await asyncio.to_thread(self.prepare, config, supervisor.running())
        if stage.deployment.name != self.stage.deployment.name:
            raise ToolkitError(
                f"the file is of deployment '{stage.deployment.name}', but '{self.stage.deployment.name}' runs here",
                str(config), "Start it by itself: 'coexist up' with that file.", code="other_deployment",
            )  # fmt: skip
        runs = launches.service_runs(stage)
        found = supervisor.compare(runs)
        await asyncio.to_thread(self._grant, stage, found)
        self.stage = stage
        supervisor.apply(runs, stage.deployment.on_supervisor_death)
        return found.document()

    def _grant(self, stage: Stage, found: Changes) -> None:
        wanted, begins = requests(stage), (*found.added, *found.changed, *found.started)
        self.held.change({name: wanted[name] for name in begins}, totals(stage, self.granted()))
        for engine in stage.engines.values():
            self.in_use.enter_context(self.hold(engine))
