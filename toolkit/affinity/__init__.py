"""The wrapper that pins and then executes, and the check afterwards."""

from toolkit.affinity.check import Report, Thread, verify
from toolkit.affinity.launch import threads_env, wrap
from toolkit.affinity.numa_maps import Placement, measure, parse_numa_maps
from toolkit.affinity.policy import MemoryPolicy, choose, probe_mempolicy_permitted

__all__ = [
    "MemoryPolicy",
    "Placement",
    "Report",
    "Thread",
    "choose",
    "measure",
    "parse_numa_maps",
    "probe_mempolicy_permitted",
    "threads_env",
    "verify",
    "wrap",
]
