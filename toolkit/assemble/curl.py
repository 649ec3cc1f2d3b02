"""A request that a person can try, from a service's own probes."""

from __future__ import annotations

import json
import shlex
from typing import Any

from toolkit.runtimes.base import Generation, Launch
from toolkit.warm import triton

MAX_TOKENS = 16


def curl(launch: Launch, port: int) -> str:
    """A ``curl`` line that the service answers."""
    generation = launch.probes.generation
    base = f"curl http://127.0.0.1:{port}"
    if generation is None:
        return base
    body = _body(generation, launch)
    path = generation.path if generation.wire == "openai" else triton.path(generation, stream=False)
    if body is None:
        return f"{base}{path}"
    return f"{base}{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


def _body(generation: Generation, launch: Launch) -> Any:
    canary = launch.probes.canary
    prompt = (canary.prompt if canary else "") or "Hello"
    if generation.wire != "openai":
        return triton.body(generation, prompt, MAX_TOKENS, stream=False)
    if generation.kind == "completions":
        return {"model": generation.model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    if generation.kind == "embeddings":
        return {"model": generation.model, "input": prompt}
    return generation.request.body if generation.request else None
