"""Rules about recipes of TensorRT-LLM: what an engine built so could not do, told before it is built."""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.compat.engines import TRTLLM_RUNTIMES
from toolkit.compat.model import Case, Hit, Role
from toolkit.config.models import HttpRequest, Recipe, Service


def _built(case: Case) -> Iterator[tuple[Role, Service, str, Recipe]]:
    """Each service with the engine that a recipe of TensorRT-LLM makes for it."""
    for role in case.roles:
        name = (role.service.engine if role.service else None) or ""
        recipe = case.surroundings.recipes.get(name)
        if role.service and recipe and recipe.builder == "trtllm" and role.runtime in TRTLLM_RUNTIMES:
            yield role, role.service, name, recipe


def blocks(case: Case) -> Iterator[Hit]:
    """Paged KV caches in blocks that the attention plugin cannot count."""
    for role, _, engine, recipe in _built(case):
        size = recipe.kv_cache.tokens_per_block
        below = 1 << (size.bit_length() - 1)
        if recipe.kv_cache.type == "paged" and size != below:
            values = {"size": size, "below": below, "above": 2 * below}
            yield Hit("kv-block-size", engine, role.environment, values)


def answers(case: Case) -> Iterator[Hit]:
    """Services without fused attention of which nobody would know what is right."""
    for role, service, engine, recipe in _built(case):
        unfused = "disable" in (service.fmha, recipe.fmha)
        canary = service.canary or recipe.canary
        told = isinstance(canary, HttpRequest) or canary.expected is not None
        if unfused and not told and recipe.model is None:
            yield Hit("unfused-answers", role.name, role.environment, {"engine": engine})


RULES = {"kv-block-size": blocks, "unfused-answers": answers}
