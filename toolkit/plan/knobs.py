"""A budget in bytes as each program's own number. Always rounded down: what a program takes stays within the budget."""

from __future__ import annotations

from fractions import Fraction

from toolkit.plan.model import LedgerLine

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


def vllm_gpu_memory_utilization(budget_bytes: int, total_bytes: int) -> float:
    """vLLM's ``--gpu-memory-utilization``: a fraction of the device's total memory, whatever is free.

    Source: vLLM engine arguments, "The fraction of GPU memory to be used for the model executor".
    """
    return fraction_of(budget_bytes, total_bytes)


def kv_cache_bytes(budget_bytes: int, fixed_bytes: int) -> int:
    """The absolute KV option (vLLM ``--kv-cache-memory-bytes``) where a release has it: what the budget leaves."""
    return max(0, budget_bytes - fixed_bytes)


def trtllm_free_gpu_memory_fraction(kv_bytes: int, free_bytes: int) -> float:
    """TensorRT-LLM's ``free_gpu_memory_fraction``: of what is free when the KV cache is made, weights already there.

    Source: TensorRT-LLM KvCacheConfig. Pass ``trtllm_max_tokens`` too: it holds when more is free than expected.
    """
    return fraction_of(min(kv_bytes, free_bytes), free_bytes) if free_bytes > 0 else 0.0


def trtllm_max_tokens(kv_bytes: int, bytes_per_token: int, tokens_per_block: int = 1) -> int:
    """TensorRT-LLM's ``max_tokens``: tokens of the whole blocks that fit."""
    return max(0, kv_bytes) // (bytes_per_token * tokens_per_block) * tokens_per_block


def sglang_mem_fraction_static(static_bytes: int, free_at_start_bytes: int) -> float:
    """SGLang's ``--mem-fraction-static``: weights and KV cache, of what is free when the server starts loading.

    Source: SGLang server arguments. With the device's total for the free bytes it errs on the small side.
    """
    return fraction_of(static_bytes, free_at_start_bytes)


def torch_memory_fraction(budget_bytes: int, total_bytes: int) -> float:
    """The argument of ``torch.cuda.set_per_process_memory_fraction``: of the device's total, context not counted."""
    return fraction_of(budget_bytes, total_bytes)


def free_when_kv_is_made(line: LedgerLine, service: str, fixed_bytes: int, later: frozenset[str]) -> int:
    """Bytes free on a device when a service has loaded everything but its KV cache.

    ``later``: services on the device that start after it and hold nothing yet.
    """
    held = sum(r.size_bytes for r in line.reserved if r.service != service and r.service not in later)
    context = sum(r.size_bytes for r in line.reserved if r.service == service and r.purpose == "CUDA context")
    return max(0, line.total_bytes - held - context - fixed_bytes)
