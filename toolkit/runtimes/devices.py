"""GPUs of one service against the ranks that need one each. Pure."""

from __future__ import annotations

from toolkit.config.models import Service
from toolkit.errors import ToolkitError


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
