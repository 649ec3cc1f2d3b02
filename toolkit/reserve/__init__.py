"""The host-wide ledger of grants between deployments: all or nothing."""

from toolkit.reserve.gpu_start import GpuStartLock, alone_on_gpu, gpu_start_lock, gpu_starts
from toolkit.reserve.ledger import Ledger
from toolkit.reserve.model import GpuClaim, Grant, Owner, Request, Totals
from toolkit.reserve.runtime_dir import runtime_dir

__all__ = [
    "GpuClaim",
    "GpuStartLock",
    "Grant",
    "Ledger",
    "Owner",
    "Request",
    "Totals",
    "alone_on_gpu",
    "gpu_start_lock",
    "gpu_starts",
    "runtime_dir",
]
