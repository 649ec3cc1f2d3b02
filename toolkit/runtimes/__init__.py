"""One file per server program: argv, environment, memory knob, and probes described as data."""

from toolkit.errors import ToolkitError
from toolkit.runtimes.base import Runtime
from toolkit.runtimes.command import CommandRuntime
from toolkit.runtimes.flash import FlashRuntime
from toolkit.runtimes.sglang import SglangRuntime
from toolkit.runtimes.torch import TorchRuntime
from toolkit.runtimes.transformers import TransformersRuntime
from toolkit.runtimes.triton import TritonRuntime
from toolkit.runtimes.trtllm import TrtllmRuntime
from toolkit.runtimes.vllm import VllmRuntime

_RUNTIMES: dict[str, Runtime] = {
    runtime.name: runtime
    for runtime in (
        TorchRuntime(),
        FlashRuntime(),
        TrtllmRuntime(),
        TritonRuntime(),
        VllmRuntime(),
        SglangRuntime(),
        TransformersRuntime(),
        CommandRuntime(),
    )
}


def names() -> tuple[str, ...]:
    """The names of all runtimes: the built-in servers, then others' programs."""
    return tuple(_RUNTIMES)


def get(name: str) -> Runtime:
    """The runtime of that name.

    Raises: ToolkitError when this version does not support the program.
    """
    if name in _RUNTIMES:
        return _RUNTIMES[name]
    supported = ", ".join(sorted(_RUNTIMES))
    raise ToolkitError(
        f"runtime '{name}' isn't supported by this version yet",
        hint=f"Supported: {supported}; 'command' runs any program.",
        code="runtime_unsupported",
    )


__all__ = ["get", "names"]
