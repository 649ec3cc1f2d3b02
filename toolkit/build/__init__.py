"""Engines made or reused: one builder per kind; torch's work runs in children, in the engine's environment."""

from toolkit.build.builders import describe, ensure
from toolkit.build.engine import BuiltEngine
from toolkit.build.steps import Command

__all__ = ["BuiltEngine", "Command", "describe", "ensure"]
