"""GPUs of one service against what it asks for: ranks that need one each, attention that needs one at all. Pure."""

from __future__ import annotations

from toolkit.config.models import Service
from toolkit.errors import ToolkitError

ON_GPU_ONLY = ("fa4", "fa3", "fa2")


def check(name: str, service: Service) -> None:
    """Raises ToolkitError when the service asks for other than a GPU for each rank; for none at all it may."""
    ranks, gpus = service.world_size, service.gpus.size
    if gpus not in (0, ranks):
        raise ToolkitError(
            f"tp_size {service.tp_size} x pp_size {service.pp_size} is {ranks} ranks, not {gpus} GPUs",
            f"services.{name}.gpus",
            f"Write 'gpus: {ranks}', or other sizes.",
            code="world_size",
        )


def check_one(name: str, service: Service, program: str, hint: str) -> None:
    """Raises ToolkitError when the service asks for ranks; ``hint`` may name the ``{key}`` that does."""
    for key in ("tp_size", "pp_size"):
        if getattr(service, key) != 1:
            where = f"services.{name}.{key}"
            raise ToolkitError(f"{program} runs on one device", where, hint.format(key=key), code="unsupported")


def check_attention(name: str, service: Service) -> None:
    """Raises ToolkitError when the service asks for FlashAttention and for no GPU."""
    if service.attention in ON_GPU_ONLY and not service.gpus.size:
        raise ToolkitError(
            f"attention '{service.attention}' runs on a GPU, and the service asks for none",
            f"services.{name}.attention",
            "Write 'gpus: 1', or 'attention: auto'.",
            code="unsupported",
        )
