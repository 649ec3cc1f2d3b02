"""The canary of every program that generates text: what its service says, else what was recorded of its model."""

from __future__ import annotations

from toolkit import canaries
from toolkit.canaries import CanarySet
from toolkit.config.models import Canary, Recipe, Service
from toolkit.errors import ToolkitError
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
    a chat's template it is another one, of which nothing is recorded: then repeats must agree.

    Raises: ToolkitError when the model is undecided about the canary's prompt, so that any answer could be right.
    """
    asked = written(context.service, context.recipe)
    found = canaries.of_document(context.reference) if context.reference is not None else None
    if found is not None and not plain:
        found = canaries.settle(CanarySet(found.prompts, source="none: the service answers chats only"))
    short = found.references.get("short") if found is not None else None
    if asked.expected is not None or found is None or short is None:
        return CanaryCheck(asked.prompt, asked.max_tokens, expected_text=asked.expected), found
    sure = canaries.cut(short, canaries.decided(short, found.bound))
    if not sure.text.strip():
        raise _undecided(context.name, found)
    tokens = len(sure.tokens) or found.prompts[0].max_tokens  # a fused engine told its text only
    return CanaryCheck(found.prompts[0].text, tokens, expected_text=sure.text), found


def _undecided(name: str, found: CanarySet) -> ToolkitError:
    return ToolkitError(
        f"the model is undecided about the first token after {found.prompts[0].text!r}: any answer could be right",
        f"services.{name}.canary",
        "Write another 'canary: {prompt: …}', or say what is 'expected'.",
        code="canary_undecided",
    )
