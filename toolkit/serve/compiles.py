"""How many kernels or graphs were compiled in this process, read from the libraries' own counters."""

from __future__ import annotations

import sys
from typing import Any


def count() -> int:
    """Compilations so far: graphs of torch.compile, kernels of Inductor, kernels in FlashAttention-4's caches.

    Only libraries that are already imported are asked, so the count costs no import.
    """
    return _dynamo_graphs() + _inductor_kernels() + flash_kernels()


def _dynamo_graphs() -> int:
    module = sys.modules.get("torch._dynamo.utils")
    counters: Any = getattr(module, "counters", None)
    return int(counters["stats"]["unique_graphs"]) if counters is not None else 0


def _inductor_kernels() -> int:
    module = sys.modules.get("torch._inductor.metrics")
    return int(getattr(module, "generated_kernel_count", 0))


def flash_kernels() -> int:
    """Kernels that ``flash_attn.cute`` holds in memory, compiled or read from its own disk cache.

    Source: the ``compile_cache`` of its functions: a dict, or an object that keeps one as ``cache`` (4.0.0b36).
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("flash_attn.cute")]
    holders = [value for module in modules for value in list(vars(module).values())]
    caches = [holder.compile_cache for holder in holders if hasattr(holder, "compile_cache")]
    kept: list[Any] = [getattr(cache, "cache", cache) for cache in caches]
    return sum(len(cache) for cache in {id(cache): cache for cache in kept}.values())
