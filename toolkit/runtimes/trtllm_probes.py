"""How ``trtllm-serve`` is asked whether it works, and what warms it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from toolkit.runtimes import generative
from toolkit.runtimes.base import Context, HttpProbe, Probes
from toolkit.runtimes.trtllm_options import Given
from toolkit.runtimes.trtllm_release import Release
from toolkit.runtimes.trtllm_served import Served

HEALTH, HEALTH_GENERATE = "/health", "/health_generate"
# The first answer may wait for kernels to be chosen.
DEEP_TIMEOUT_S = 120.0
BATCHES = (2, 4, 8, 16, 32)
BATCH_WORDS = 8


def probes(context: Context, served: Served, release: Release, given: Given) -> Probes:
    """``/health`` runs no inference, so an instance counts as loaded only once it has also generated something."""
    model = model_name(served, given)
    longest = served.limits.get("max_input_len", given.count("max_seq_len"))
    made = generative.probes(
        context,
        model=model,
        max_input_tokens=longest,
        live=HttpProbe(HEALTH),
        deep=_deep(release, model),
        several=False,
        metrics=False,
    )
    return replace(made, warmup=(*made.warmup, *_batches(model, served, given)))


def model_name(served: Served, given: Given) -> str:
    """What ``/v1/models`` calls it: the folder's name, or what ``served_model_name`` says."""
    return str(given.values.get("served_model_name") or served.folder.name)


def _deep(release: Release, model: str) -> HttpProbe:
    """One token, by the server's own path where it has one."""
    if release.answers(HEALTH_GENERATE):
        return HttpProbe(HEALTH_GENERATE, timeout_s=DEEP_TIMEOUT_S)
    body = {"model": model, "prompt": generative.text(1), "max_tokens": 1, "temperature": 0}
    return HttpProbe(generative.COMPLETIONS, "POST", body, expect_text='"choices"', timeout_s=DEEP_TIMEOUT_S)


def _batches(model: str, served: Served, given: Given) -> Iterator[HttpProbe]:
    """Several short prompts in one body, as many as decode together."""
    largest = given.count("max_batch_size") or served.limits.get("max_batch_size", BATCHES[-1])
    tokens = given.count("max_num_tokens") or served.limits.get("max_num_tokens")
    each = BATCH_WORDS * generative.TOKENS_PER_WORD
    for size in BATCHES:
        if size <= largest and (tokens is None or size * each <= tokens):
            prompts = [generative.text(BATCH_WORDS, shift) for shift in range(size)]
            body = {"model": model, "prompt": prompts, "max_tokens": generative.WARMUP_TOKENS, "temperature": 0}
            yield HttpProbe(generative.COMPLETIONS, "POST", body, timeout_s=generative.WARMUP_TIMEOUT_S)
