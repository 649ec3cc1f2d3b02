"""The command line: the only room that prints or exits."""

from toolkit.cli.boundary import main

__all__ = ["main"]
