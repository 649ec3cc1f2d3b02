"""Every key that is to be warm is run once, with dummy prompts; a batch that does not fit is halved, and on it goes.

A key is what a program may compile, capture or tune something of its own for: how many prompts of how many words, and
the adapter. Built-in servers run and name their keys themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from toolkit.config.models import Warmup
from toolkit.files import parsed_object
from toolkit.runtimes.base import HttpProbe, Probes
from toolkit.warm.client import RequestFailedError
from toolkit.warm.model import Coverage

# A request that was refused for what it asks at once: try with less.
_FULL_STATUSES = frozenset({413, 429, 503, 507})
_FULL_WORDS = re.compile(
    r"out of memory|outofmemory|\bOOM\b|insufficient (gpu )?memory|not enough memory", re.IGNORECASE
)

Send = Callable[[HttpProbe], Awaitable[str]]
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Key:
    """One shape to run."""

    name: str
    probe: HttpProbe


def plan(probes: Probes, mode: Warmup) -> tuple[Key, ...]:
    """The keys to run: all for ``full``, the first for ``single``, none for ``none``."""
    asked = {"full": len(probes.warmup), "single": 1, "none": 0}[mode]
    return tuple(Key(key_of(probe), _with_mode(probe, mode)) for probe in probes.warmup[:asked])


def key_of(probe: HttpProbe) -> str:
    """``PROMPTSxWORDS`` of a completion, with its adapter; of any other request its path."""
    body = probe.body if isinstance(probe.body, Mapping) else {}
    prompts = _prompts(body)
    if not prompts:
        return f"{probe.method} {probe.path}"
    shape = f"{len(prompts)}x{max(len(prompt.split()) for prompt in prompts)}"
    adapter = probe.adapter
    return f"{shape} adapter={adapter}" if adapter else shape


def halved(key: Key) -> Key | None:
    """The key with half of its prompts; None: there is only one."""
    body = key.probe.body
    prompts = body.get("prompt") if isinstance(body, Mapping) else None
    if not isinstance(prompts, list) or len(prompts) < 2:
        return None
    probe = replace(key.probe, body={**body, "prompt": prompts[: len(prompts) // 2]})
    return Key(key_of(probe), probe)


def is_full(error: RequestFailedError, *, alone: bool) -> bool:
    """Whether the answer says that there is no room for so much at once; ``alone``: it was a single prompt.

    A server that has no room for one prompt has none for users either, unless it is that prompt's memory that is short.
    """
    return _FULL_WORDS.search(error.reason) is not None or (not alone and error.status in _FULL_STATUSES)


async def walk(keys: tuple[Key, ...], send: Send, tell: Tell, unknown: tuple[str, ...] = ()) -> Coverage:
    """What has run. ``send`` may wait for a server that says "not yet"; ``tell(done, total, what)`` is called for each.

    Raises: what ``send`` raises when a key fails for another reason than room.
    """
    ran: list[str] = []
    left: list[str] = []
    for done, key in enumerate(keys):
        tell(done, len(keys), key.name)
        ran.extend(await _run(key, send, left))
    warm, missed = tuple(dict.fromkeys(ran)), tuple(key for key in dict.fromkeys(left) if key not in ran)
    return Coverage(warm, len(warm) + len(missed), missed, unknown)


async def _run(key: Key, send: Send, left: list[str]) -> list[str]:
    """The keys that ran: those that its answer names, else itself, or itself with fewer prompts."""
    try:
        answer = await send(key.probe)
    except RequestFailedError as error:
        fewer = halved(key)
        if not is_full(error, alone=fewer is None):
            raise
        left.append(key.name)
        return await _run(fewer, send, left) if fewer else []
    return _named(answer) or [key.name]


def _named(body: str) -> list[str]:
    keys = (parsed_object(body) or {}).get("keys")
    return [key if isinstance(key, str) else json.dumps(key) for key in keys] if isinstance(keys, list) else []


def _prompts(body: Mapping[str, object]) -> list[str]:
    asked = body.get("prompt", body.get("text_input"))
    messages = body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        asked = messages[-1].get("content")
    found = asked if isinstance(asked, list) else [asked]
    return [prompt for prompt in found if isinstance(prompt, str)]


def _with_mode(probe: HttpProbe, mode: Warmup) -> HttpProbe:
    """A built-in server is told the mode in its body."""
    if isinstance(probe.body, Mapping) and "mode" in probe.body:
        return replace(probe, body={**probe.body, "mode": mode})
    return probe
