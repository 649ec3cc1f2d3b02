"""coexist: check, build and run unlike GPU servers side by side on one node."""

__version__ = "0.1.0"
