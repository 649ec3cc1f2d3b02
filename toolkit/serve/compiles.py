"""What was compiled in this process, read from the libraries' own counters and caches."""

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
    """Kernels that ``flash_attn.cute`` holds in memory, compiled or read from its own disk cache."""
    return sum(len(cache) for _, cache in _flash_caches())


def compiled_keys() -> list[str]:
    """The keys of what was compiled, as the libraries' own caches have them; ``CACHE: KEY``."""
    flash = [f"{name}: {key}" for name, cache in _flash_caches() for key in list(cache)]
    return [*flash, *(f"inductor: {name}" for name in _inductor_modules())]


def _flash_caches() -> list[tuple[str, Any]]:
    """Caches of compiled kernels, each behind the name of the function that has it.

    Source: the ``compile_cache`` of its functions: a dict, or an object that keeps one as ``cache`` (4.0.0b36).
    """
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("flash_attn.cute")]
    holders = [value for module in modules for value in list(vars(module).values()) if hasattr(value, "compile_cache")]
    named = ((_name(holder), getattr(holder.compile_cache, "cache", holder.compile_cache)) for holder in holders)
    return list({id(cache): (f"{name}.compile_cache", cache) for name, cache in named}.values())


def _name(holder: Any) -> str:
    return f"{getattr(holder, '__module__', 'flash_attn.cute')}.{getattr(holder, '__name__', type(holder).__name__)}"


def _inductor_modules() -> list[str]:
    """Modules that Inductor generated or read from its cache, by the hash of their source."""
    cache: Any = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    return [module.__name__.rpartition(".")[2] for module in getattr(cache, "modules", ())]
