"""Why a start failed or stalls: one classifier for start logs, with patterns as data."""

from toolkit.diagnose.classify import classify
from toolkit.diagnose.model import Context, Device, Diagnosis, Ending, Holder

__all__ = ["Context", "Device", "Diagnosis", "Ending", "Holder", "classify"]
