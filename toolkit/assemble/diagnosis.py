"""What a diagnosis of a failed attempt may know of plan and host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from toolkit.assemble.launches import Stage
from toolkit.diagnose import catalogue
from toolkit.diagnose.context import context_of
from toolkit.errors import ToolkitError
from toolkit.host import record
from toolkit.plan.document import document
from toolkit.supervise import diagnose_log
from toolkit.supervise.attempt import Diagnose
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome
from toolkit.supervise.supervisor import Supervisor


def diagnose(stage: Stage) -> Diagnose:
    """Judges attempts of this deployment by their logs, the ledger and the devices of this host."""
    plan, host = document(stage.plan, {}), record.document(stage.host)

    def judged(outcome: Outcome) -> Failure:
        return diagnose_log.diagnose(outcome, context_of(outcome.service, plan, host))

    return judged


@asynccontextmanager
async def read_ahead(supervisor: Supervisor) -> AsyncIterator[None]:
    """While the block runs, the patterns are read once all is ready: the first failure after that waits for none."""
    task = asyncio.create_task(_read_when_ready(supervisor))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read_when_ready(supervisor: Supervisor) -> None:
    with suppress(ToolkitError):  # that it never was is told by others
        await supervisor.wait_ready()
    await asyncio.to_thread(catalogue.load)
