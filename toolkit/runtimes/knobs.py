"""A budget in bytes as each program's own number. Always rounded down: what a program takes stays within the budget."""

from __future__ import annotations

from fractions import Fraction

from toolkit.runtimes.base import DeviceMemory

_STEPS: int = 10_000


def fraction_of(part_bytes: int, whole_bytes: int) -> float:
    """The largest fraction with four decimals, at most 1, that times the whole is no more than the part.

    Raises: ValueError when the whole is not positive or the part negative.
    """
    if whole_bytes <= 0 or part_bytes < 0:
        raise ValueError(f"{part_bytes} of {whole_bytes} bytes is no fraction of a device")
    steps = min(_STEPS, part_bytes * _STEPS // whole_bytes)
    while Fraction(steps / _STEPS) * whole_bytes > part_bytes:  # the nearest float can lie above the decimal
        steps -= 1
    return steps / _STEPS


def vllm_gpu_memory_utilization(memory: DeviceMemory) -> float | None:
    """vLLM's ``--gpu-memory-utilization``: a fraction of the device's total memory, whatever is free. None: unknown.

    What it bounds is weights, activations and KV cache: the CUDA context is there before vLLM's first look, and vLLM
    refuses to start when less than the fraction is free then. Source: vLLM 0.33.0, ``request_memory`` and
    ``MemorySnapshot`` in ``v1/worker``; 0.6.3, ``determine_num_available_blocks``.
    """
    if memory.budget_bytes is None or not memory.total_bytes:
        return None
    return fraction_of(memory.budget_bytes, memory.total_bytes)


def vllm_kv_cache_bytes(memory: DeviceMemory) -> int | None:
    """vLLM's ``--kv-cache-memory-bytes``: what the budget leaves for the KV cache. None: unknown, or no KV cache."""
    return memory.kv_bytes if memory.kv_bytes and memory.kv_bytes_per_token else None


def trtllm_max_tokens(memory: DeviceMemory) -> int | None:
    """TensorRT-LLM's ``max_tokens``: tokens of the whole blocks that fit. None: unknown, or there is no KV cache."""
    if memory.kv_bytes is None or not memory.kv_bytes_per_token:
        return None
    block = memory.tokens_per_block or 1
    return memory.kv_bytes // (memory.kv_bytes_per_token * block) * block


def trtllm_free_fraction(memory: DeviceMemory, *, capped: bool) -> float | None:
    """TensorRT-LLM's ``free_gpu_memory_fraction``: of what is free when the KV cache is made, weights already there.

    ``capped``: ``max_tokens`` holds beside it, so it may assume the least that can be free and still never bind too
    early; else it assumes the most. None: unknown. Where only weights are unknown it is the whole budget's share: they
    come on top by the part of them that the share leaves. Source: TensorRT-LLM KvCacheConfig, the lesser of the two.
    """
    free_bytes = memory.free_beside_all_bytes if capped else memory.free_bytes
    kv_bytes = memory.budget_bytes if memory.kv_bytes is None else memory.kv_bytes
    if kv_bytes is None or free_bytes is None:
        return None
    left_bytes = free_bytes - memory.context_bytes - (memory.fixed_bytes or 0)
    return fraction_of(min(kv_bytes, left_bytes), left_bytes) if left_bytes > 0 else 0.0


def sglang_mem_fraction_static(memory: DeviceMemory) -> float | None:
    """SGLang's ``--mem-fraction-static``: weights and KV cache, of what is free when the server starts loading.

    It takes the most that can be free then; when less is, the KV cache is smaller. None: unknown. Source: SGLang
    0.5.23, ``kv_cache_configurator``: the share that is not static is kept of what was free at first.
    """
    if memory.budget_bytes is None or memory.free_bytes is None or memory.kv_bytes is None:
        return None
    static_bytes = memory.kv_bytes + (memory.weights_bytes or 0)
    free_bytes = memory.free_bytes - memory.context_bytes
    return fraction_of(min(static_bytes, free_bytes), free_bytes) if free_bytes > 0 else None


def sglang_max_total_tokens(memory: DeviceMemory) -> int | None:
    """SGLang's ``--max-total-tokens``: holds the KV cache down when more is free than planned. None: unknown."""
    if memory.kv_bytes is None or not memory.kv_bytes_per_token:
        return None
    return memory.kv_bytes // memory.kv_bytes_per_token
