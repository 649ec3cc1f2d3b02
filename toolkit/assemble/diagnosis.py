"""What a diagnosis of a failed attempt may know of plan and host."""

from __future__ import annotations

from toolkit.assemble.launches import Stage
from toolkit.diagnose.context import context_of
from toolkit.host import record
from toolkit.plan.document import document
from toolkit.supervise import diagnose_log
from toolkit.supervise.attempt import Diagnose
from toolkit.supervise.lifecycle import Failure
from toolkit.supervise.outcome import Outcome


def diagnose(stage: Stage) -> Diagnose:
    """Judges attempts of this deployment by their logs, the ledger and the devices of this host."""
    plan, host = document(stage.plan, {}), record.document(stage.host)

    def judged(outcome: Outcome) -> Failure:
        return diagnose_log.diagnose(outcome, context_of(outcome.service, plan, host))

    return judged
