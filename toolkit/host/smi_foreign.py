"""What a text is that none of the readers takes, in words."""

from __future__ import annotations

import re

from toolkit.host.smi_text import excerpt

_FAILURES = (
    "Unable to determine the device handle", "No devices were found", "No devices found", "NVIDIA-SMI has failed",
    "Failed to initialize NVML",
)  # fmt: skip
_ERRORS = (
    *_FAILURES, "command line argument", "command not found", "not recognized as an internal", "is not a valid option",
    "Invalid combination of input arguments", "couldn't communicate with the NVIDIA driver", "Unknown Error",
    "GPU is lost", "Insufficient Permissions", "Field \"", "Option ",
)  # fmt: skip
_LOST = re.compile(r"device handle for GPU\s*(?:\d+:\s+)?([0-9A-Fa-f:.]*[0-9A-Fa-f])", re.IGNORECASE)
_KINDS: tuple[tuple[str, str], ...] = (
    (r"NVRM:|\bXid\b", "kernel log lines of the driver"),
    (r"^\s*SLURM_\w+=", "the environment of a Slurm job step"),
    (r"^\s*NUMA node\d* CPU\(s\)|^\s*NUMA node\(s\)|^Architecture:\s", "the output of lscpu"),
    (r"^node\s+distances|^available:\s*\d+ nodes|^node \d+ (cpus|size)", "the output of numactl -H"),
    (r"^\|\s*GPU\s+GI\s+CI|^\|\s*Processes:", "the process table of nvidia-smi"),
    (r"^\|\s*\d+\s+MIG\s+\d", "a row of 'nvidia-smi mig -lgi'"),
    (r"MiB\s*/\s*\d+MiB|^\|\s*NVIDIA-SMI|^\+-{20,}", "the table of nvidia-smi"),
    (r"^\s*GPU\d+\s+(X\s+)?(OK|CNS|GNS|TNS|DR|NS)\b", "'nvidia-smi topo -p2p'"),
    (r"^\s*CPU\s*Affinity\s", "'nvidia-smi topo -mp': affinity without a matrix"),
    (r"^=+NVSMI LOG=+|<nvidia_smi_log", "the full report of nvidia-smi -q"),
    (r"^\s*GPU\d+\s+(X|NV\d+|PIX|PXB|PHB|NODE|SYS)\b", "rows of a matrix without their header"),
    (r"^\s*MIG\s+\d\S*\s+Device", "MIG devices without their GPU"),
    (r"^\s*[\[{]", "JSON"),
    (r"^[A-Z_][A-Z0-9_]*=", "environment variables"),
)


def failure(lines: list[str]) -> str | None:
    """What nvidia-smi says of its own failure in one of the lines, in words; None: nothing."""
    line = next((line for line in lines if line.strip().startswith(_FAILURES)), None)
    return None if line is None else describe(line)


def describe(text: str) -> str:
    """A few words on what the text is, quoting it where it is unknown."""
    lost = _LOST.search(text)
    if lost:
        return f"the error text of nvidia-smi: GPU {lost[1]} is lost, so nothing is known of the others either"
    for pattern, name in _KINDS:
        if re.search(pattern, text, re.MULTILINE):
            return name
    if any(error in text for error in _ERRORS):
        return f"an error text ('{excerpt(text)}')"
    return f"something else ('{excerpt(text)}')" if text.strip() else "an empty text"
