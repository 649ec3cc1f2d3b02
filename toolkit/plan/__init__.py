"""Placement, memory ledger, cores and order: pure functions from a deployment and a host to a plan."""

from toolkit.plan.model import Grant, Plan
from toolkit.plan.need import Need
from toolkit.plan.planner import make

__all__ = ["Grant", "Need", "Plan", "make"]
