"""The canary of every program that generates text: what its service says, else what was recorded of its model."""

from __future__ import annotations

from toolkit import canaries
from toolkit.canaries import CanarySet
from toolkit.config.models import Canary
from toolkit.runtimes.base import CanaryCheck, Context


def canary_of(context: Context) -> tuple[CanaryCheck, CanarySet | None]:
    """What must be answered right before READY: one prompt, and the set that reaches cached blocks and chunks.

    Both go into ``Probes(canary=…, canary_set=…)``. ``context.reference`` holds the recorded set of a service; without
    one (a plan, nothing recorded yet) only what the service expects is known.
    """
    written = context.service.canary if isinstance(context.service.canary, Canary) else None
    asked = written or (context.recipe.canary if context.recipe is not None else Canary())
    found = canaries.of_document(context.reference) if context.reference is not None else None
    short = found.references.get("short") if found is not None else None
    if asked.expected is not None or found is None or short is None:
        return CanaryCheck(asked.prompt, asked.max_tokens, expected_text=asked.expected), found
    sure = canaries.cut(short, canaries.decided(short, found.bound))
    return CanaryCheck(asked.prompt, max(len(sure.tokens), 1), expected_text=sure.text or None), found
