"""The canary of every program that generates text: what its service says, else what was recorded of its model."""

from __future__ import annotations

from toolkit import canaries
from toolkit.canaries import CanarySet
from toolkit.config.models import Canary, Recipe, Service
from toolkit.runtimes.base import CanaryCheck, Context


def written(service: Service, recipe: Recipe | None) -> Canary:
    """The canary that the service writes, else its engine's recipe, else coexist's own."""
    if isinstance(service.canary, Canary):
        return service.canary
    return recipe.canary if recipe is not None else Canary()


def canary_of(context: Context, *, plain: bool = True) -> tuple[CanaryCheck, CanarySet | None]:
    """What must be answered right before READY: one prompt, and the set that reaches cached blocks and chunks.

    Both go into ``Probes(canary=…, canary_set=…)``. ``context.reference`` holds the recorded set of a service; without
    one (a plan, nothing recorded yet) only what the service expects is known. ``plain``: a prompt is sent as it is; in
    a chat's template it is another one, of which nothing is recorded: then repeats must agree. So they must where the
    model is undecided at once, for then any answer could be right.
    """
    asked = written(context.service, context.recipe)
    found = canaries.of_document(context.reference) if context.reference is not None else None
    if found is not None and not plain:
        found = canaries.settle(CanarySet(found.prompts, source="none: the service answers chats only"))
    short = found.references.get("short") if found is not None else None
    if asked.expected is not None or found is None:
        return CanaryCheck(asked.prompt, asked.max_tokens, expected_text=asked.expected), found
    first = found.prompts[0]
    sure = canaries.cut(short, canaries.decided(short, found.bound)) if short is not None else None
    if sure is None or not sure.text.strip():
        return CanaryCheck(first.text, first.max_tokens, repeats_only=True), found
    tokens = len(sure.tokens) or first.max_tokens  # a fused engine told its text only
    return CanaryCheck(first.text, tokens, expected_text=sure.text), found
