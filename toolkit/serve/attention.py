"""Attention by name over packed tokens (no padding), and what was really called.

Shapes: T tokens of all texts one after another, H heads, D head size. Texts of equal length stand side by side.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler_legacy
from torch.nn import functional as F  # noqa: N812

# Module and function of each flash-attn generation, and the compute capabilities it has kernels for.
_FLASH = {
    "fa4": ("flash_attn.cute", (9, 0), None),
    "fa3": ("flash_attn_interface", (9, 0), (10, 0)),
    "fa2": ("flash_attn", (8, 0), None),
}
# Operators that only choose a kernel.
_WRAPPERS = ("aten::scaled_dot_product_attention", "aten::softmax")
_FLASH_FUNCTION = "flash_attn_varlen_func"

Bias = Callable[[int], Tensor]


@dataclass(frozen=True)
class Group:
    """``count`` texts of ``length`` tokens each, from token ``start`` on."""

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        """The token after the last."""
        return self.start + self.count * self.length


@dataclass(frozen=True)
class Layout:
    """Where each text of a batch lies. ``bias`` gives what is added to the scores of a length [H, L, L]."""

    groups: tuple[Group, ...]
    cu_seqlens: Tensor
    max_length: int
    bias: Bias | None = None


def layout(lengths: Sequence[int], device: torch.device, bias: Bias | None = None) -> Layout:
    """The layout of texts with these lengths, in this order."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=device)
    return Layout(_groups(lengths), cu_seqlens, max(lengths), bias)


def _groups(lengths: Sequence[int]) -> tuple[Group, ...]:
    groups: list[Group] = []
    start = 0
    for length in lengths:
        last = groups[-1] if groups else None
        if last is not None and last.length == length:
            groups[-1] = Group(last.start, last.count + 1, length)
        else:
            groups.append(Group(start, 1, length))
        start += length
    return tuple(groups)


Kernel = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]


def sdpa(q: Tensor, k: Tensor, v: Tensor, where: Layout) -> Tensor:
    """Attention [T, H, D] through torch's scaled_dot_product_attention, one call per length."""
    return _by_group(q, k, v, where, lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, attn_mask=bias))


def vanilla(q: Tensor, k: Tensor, v: Tensor, where: Layout) -> Tensor:
    """Attention [T, H, D] out of matrix products and a softmax."""
    return _by_group(q, k, v, where, _plain)


def _plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5)
    if bias is not None:
        scores = scores + bias
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype), v)


def _by_group(q: Tensor, k: Tensor, v: Tensor, where: Layout, attend: Callable[..., Tensor]) -> Tensor:
    parts = []
    for group in where.groups:
        rows = (_rows(tensor, group) for tensor in (q, k, v))
        bias = where.bias(group.length) if where.bias is not None else None
        parts.append(attend(*rows, bias).transpose(1, 2).reshape(-1, *q.shape[1:]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _rows(tensor: Tensor, group: Group) -> Tensor:
    texts = tensor[group.start : group.stop].view(group.count, group.length, *tensor.shape[1:])
    return texts.transpose(1, 2)


def _flash(function: Callable[..., Any]) -> Kernel:
    def attend(q: Tensor, k: Tensor, v: Tensor, where: Layout) -> Tensor:
        lengths = {"cu_seqlens_q": where.cu_seqlens, "cu_seqlens_k": where.cu_seqlens}
        longest = {"max_seqlen_q": where.max_length, "max_seqlen_k": where.max_length}
        result = function(q, k, v, **lengths, **longest)
        # Generations differ in whether the log-sum-exp comes along.
        output: Tensor = result[0] if isinstance(result, tuple) else result
        return output

    return attend


@dataclass(frozen=True)
class Needs:
    """What an encoder asks of its attention."""

    device: torch.device
    dtype: torch.dtype
    has_bias: bool = False


def candidates(asked: str, needs: Needs) -> tuple[str, ...]:
    """Names to try in order: the asked one, or for ``auto`` those that suit the device."""
    if asked != "auto":
        return ("vanilla",) if asked == "eager" else (asked,)
    if needs.device.type != "cuda":
        return ("sdpa",)
    return ("fa4", "fa3", "fa2", "sdpa")


def obstacle(name: str, needs: Needs) -> str | None:
    """Why a path cannot serve these needs; None when nothing is known to stand against it."""
    if name not in _FLASH:
        return None
    _, least, below = _FLASH[name]
    if needs.device.type != "cuda":
        return "it runs on a CUDA device only"
    if needs.dtype not in (torch.float16, torch.bfloat16):
        return f"it needs float16 or bfloat16, not {str(needs.dtype).removeprefix('torch.')}"
    if needs.has_bias:
        return "it takes no position bias, which this architecture (MPNet) has"
    capability = torch.cuda.get_device_capability(needs.device)
    if capability < least or (below is not None and capability >= below):
        return f"it has no kernels for this GPU (compute capability {capability[0]}.{capability[1]})"
    return None


def kernel(name: str) -> tuple[Kernel, str]:
    """The function of a path, and the full name of what it calls.

    Raises: ImportError when its library is not there or does not load.
    """
    if name == "sdpa":
        return sdpa, "torch.nn.functional.scaled_dot_product_attention"
    if name == "vanilla":
        return vanilla, "torch.softmax"
    module = importlib.import_module(_FLASH[name][0])
    function = getattr(module, _FLASH_FUNCTION, None)
    if function is None:
        raise ImportError(f"{_FLASH[name][0]} has no {_FLASH_FUNCTION}")
    return _flash(function), f"{function.__module__}.{function.__qualname__}"


class Attention:
    """One path. ``used`` is its name once it has run, ``kernels`` what its first call dispatched to."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kernel, self._source = kernel(name)
        self.used: str | None = None
        self.kernels: tuple[str, ...] = ()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, where: Layout) -> Tensor:
        """Attention [T, H, D]."""
        if self.used is None:
            return self._observed(q, k, v, where)
        return self._kernel(q, k, v, where)

    def _observed(self, q: Tensor, k: Tensor, v: Tensor, where: Layout) -> Tensor:
        # The dispatch-mode API would tell the same, but imports all of torch._dynamo: a second of every start.
        with profiler_legacy.profile() as observer:  # type: ignore[no-untyped-call]
            output = self._kernel(q, k, v, where)
        self.used = self._name
        names = (event.name for event in observer.function_events or ())
        self.kernels = tuple(dict.fromkeys(filter(_is_kernel, names))) or (self._source,)
        return output


def _is_kernel(name: str) -> bool:
    return any(word in name for word in ("attention", "attn", "softmax")) and name not in _WRAPPERS
