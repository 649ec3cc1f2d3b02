"""The canary set is asked and judged: answers that only come out wrong behind cached blocks or chunks veto READY."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from toolkit import canaries
from toolkit.canaries import Answer, CanaryPrompt, CanarySet, Mismatch
from toolkit.warm.client import Client, RequestFailedError, shorten
from toolkit.warm.model import WarmupError

# What servers answer to a prompt that is too long for them.
REFUSED_STATUSES = frozenset({400, 413, 422})

Patiently = Callable[[Callable[[], Awaitable[Answer]]], Awaitable[Answer]]


async def prove(
    client: Client, found: CanarySet, patiently: Patiently, before: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Answer]:
    """The answers by prompt, once every prompt was answered right as often as it is to be asked.

    ``before``: right answers that prompts had already, by text: a wrong one after it comes from cached blocks.

    Raises: WarmupError ``canary_wrong`` with the guard to look at; ``request_failed``.
    """
    right: dict[str, Answer] = {}
    for prompt in found.prompts:
        answers = [await patiently(partial(_ask, client, prompt)) for _ in range(prompt.times)]
        if wrong := canaries.judge([prompt], {prompt.id: answers}, found.references, found.bound):
            earlier = before.get(prompt.text)
            raise _veto(wrong[0] if earlier is None else _after(wrong[0], earlier), found)
        right[prompt.id] = answers[0]
    return right


def _after(wrong: Mismatch, earlier: str) -> Mismatch:
    """The mismatch of a prompt that was asked before: when the two answers part, its blocks were cached by then."""
    one, other = earlier.strip(), wrong.got.strip()
    if one.startswith(other) or other.startswith(one):
        return wrong
    what = f"wrong answer to '{wrong.id}': it was right the first time, and is another the next"
    return replace(wrong, guard="kv_cache_reuse", what=what, expected=earlier)


def hint(guard: str) -> str:
    """Where to look when an answer is wrong that this guard keeps right."""
    return f"Look at {guard}: {canaries.GUARDS.get(guard, 'what was switched on last')}."


async def _ask(client: Client, prompt: CanaryPrompt) -> Answer:
    generation = client.target.probes.generation
    token_ids = generation is not None and generation.token_ids
    try:
        piece = await client.complete(prompt.text, prompt.max_tokens, token_ids=token_ids)
    except RequestFailedError as error:
        if error.status in REFUSED_STATUSES:
            raise _refused(prompt, error.reason) from error
        raise
    return Answer(piece.text, piece.token_ids)


def _refused(prompt: CanaryPrompt, reason: str) -> WarmupError:
    return WarmupError(
        f"the canary '{prompt.id}' of at least {prompt.min_tokens} tokens was refused: {reason}",
        hint="The server takes shorter prompts than its engine, model or options say: write its max_input_len "
        f"(max_model_len) in 'options', or look at {prompt.guard}.",
        code="request_failed",
        guard=prompt.guard,
    )


def _veto(wrong: Mismatch, found: CanarySet) -> WarmupError:
    expected, got = shorten(wrong.expected, {}), shorten(wrong.got, {})
    source = f" (right answers: {found.source})" if found.source else ""
    return WarmupError(
        f"{wrong.what}: expected '{expected}', got '{got}'{source}",
        hint=hint(wrong.guard),
        code="canary_wrong",
        canary={"ok": False, "expected": wrong.expected, "got": wrong.got},
        guard=wrong.guard,
    )
