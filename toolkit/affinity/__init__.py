"""The wrapper that pins and then executes, and the check afterwards."""

from toolkit.affinity.check import Report, Thread, verify
from toolkit.affinity.launch import wrap
from toolkit.affinity.numa_maps import Placement, measure
from toolkit.affinity.policy import MemoryPolicy, choose, probe_mempolicy_permitted

__all__ = [
    "MemoryPolicy",
    "Placement",
    "Report",
    "Thread",
    "choose",
    "measure",
    "probe_mempolicy_permitted",
    "verify",
    "wrap",
]
