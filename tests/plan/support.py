"""Cases through the planner."""

from __future__ import annotations

from typing import Any

from tests.placement_cases import translate
from toolkit.config.models import Deployment
from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.plan import make
from toolkit.plan.document import document
from toolkit.units import MIB


def host_of(record: dict[str, Any]) -> Host:
    """The host of a record."""
    fields = {key: value for key, value in record.items() if key not in {"schema", "context_mib"}}
    return Host.model_validate({**fields, "context_bytes": record["context_mib"] * MIB})


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The JSON of the plan of a case, or of its refusal."""
    record, deployment = translate(case)
    try:
        plan = make(Deployment.model_validate(deployment), host_of(record))
    except ToolkitError as error:
        return {"error": {"what": error.what, "where": error.where, **error.details}}
    return document(plan, {})
