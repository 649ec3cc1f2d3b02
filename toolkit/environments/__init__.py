"""What a Python environment holds and what its binaries need, read from files; nothing of it is imported."""
