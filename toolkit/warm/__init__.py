"""Performs the probes of an instance; the proof that it is warm."""

from toolkit.warm.model import (
    CanaryResult,
    Clock,
    FirstRequest,
    OnProgress,
    Progress,
    Proof,
    StageReport,
    Target,
    WarmupError,
)
from toolkit.warm.perform import drain, first_request, prime, register, wait_loaded

__all__ = [
    "CanaryResult",
    "Clock",
    "FirstRequest",
    "OnProgress",
    "Progress",
    "Proof",
    "StageReport",
    "Target",
    "WarmupError",
    "drain",
    "first_request",
    "prime",
    "register",
    "wait_loaded",
]
