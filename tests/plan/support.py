"""Cases through the planner."""

from __future__ import annotations

from typing import Any

from tests.placement_cases import translate
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.host.record import read
from toolkit.plan import make
from toolkit.plan.document import document


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The JSON of the plan of a case, or of its refusal."""
    record, deployment = translate(case)
    try:
        plan = make(Deployment.model_validate(deployment), read(record, "case"))
    except ToolkitError as error:
        return {"error": {"what": error.what, "where": error.where, **error.details}}
    return document(plan, {})
