"""What a Python environment holds and what its binaries need, read from files; nothing of it is imported."""

from toolkit.environments.binaries import Binaries, Binary
from toolkit.environments.binaries import read as read_binaries
from toolkit.environments.loader import Files
from toolkit.environments.mismatch import Mismatch
from toolkit.environments.model import Conflict, Distribution, Environment, Problem, TorchFacts
from toolkit.environments.reading import read

__all__ = [
    "Binaries",
    "Binary",
    "Conflict",
    "Distribution",
    "Environment",
    "Files",
    "Mismatch",
    "Problem",
    "TorchFacts",
    "read",
    "read_binaries",
]
