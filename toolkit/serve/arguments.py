"""Command-line flags that both built-in servers share, and what they mean for the device."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    import torch


def parser(name: str) -> argparse.ArgumentParser:
    """A parser with the shared flags."""
    flags = argparse.ArgumentParser(prog=f"run.py {name}", allow_abbrev=False)
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=_port, default=8000, help="0: any free port, told in the log")
    flags.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    flags.add_argument("--served-model-name", default=None)
    budget = flags.add_mutually_exclusive_group()
    budget.add_argument("--memory-fraction", type=_fraction, default=None, help="of the GPU's memory, context left out")
    budget.add_argument("--memory-bytes", type=positive_int, default=None, help="of the GPU, context left out")
    return flags


def positive_int(text: str) -> int:
    """A whole number from 1. Raises: ArgumentTypeError."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 1")
    return int(text)


def non_negative_float(text: str) -> float:
    """A number from 0. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0")
    return value


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port (0 to 65535)")
    return int(text)


def _fraction(text: str) -> float:
    value = non_negative_float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a fraction (over 0, at most 1)")
    return value


def open_device(asked: str, memory_fraction: float | None, memory_bytes: int | None) -> torch.device:
    """The device, its context made and its memory bounded. This imports torch.

    Raises: ToolkitError when a GPU is asked for and there is none.
    """
    import torch  # noqa: PLC0415 - takes a second, and the port must answer before

    # torch refuses to be told twice, and one process may open its device again.
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    has_cuda = asked != "cpu" and torch.cuda.is_available()
    if not has_cuda:
        if asked == "cuda":
            raise ToolkitError("no CUDA device can be used", "--device cuda", _cuda_hint(torch.version.cuda))
        return torch.device("cpu")
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    without_cudnn_attention()
    if memory_bytes is not None:
        memory_fraction = min(1.0, memory_bytes / torch.cuda.get_device_properties(device).total_memory)
    if memory_fraction is not None:
        torch.cuda.set_per_process_memory_fraction(memory_fraction, device)
    torch.empty(1, device=device)
    return device


def without_cudnn_attention() -> None:
    """From now on torch's fused attention leaves cuDNN out, which plans anew for every shape it has not seen.

    Read on an H200: 41 to 140 ms for the first call of each shape, 3 to 7 ms without it, and later calls as fast.
    """
    import torch  # noqa: PLC0415 - see open_device

    torch.backends.cuda.enable_cudnn_sdp(False)


def _cuda_hint(torch_cuda: str | None) -> str:
    if torch_cuda is None:
        return "This environment's torch is built without CUDA; install a CUDA build, or use --device cpu."
    return "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu."
