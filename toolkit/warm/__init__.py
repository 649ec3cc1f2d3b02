"""Performs the probes of an instance; the proof that it is warm."""

from toolkit.warm.client import session
from toolkit.warm.model import (
    CanaryResult,
    Clock,
    FirstRequest,
    Memory,
    OnProgress,
    Progress,
    Proof,
    StageReport,
    Target,
    WarmupError,
)
from toolkit.warm.preload import wait_loaded
from toolkit.warm.prime import PATIENCE_S, prime
from toolkit.warm.serving import drain, first_request, register

__all__ = [
    "PATIENCE_S",
    "CanaryResult",
    "Clock",
    "FirstRequest",
    "Memory",
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
    "session",
    "wait_loaded",
]
