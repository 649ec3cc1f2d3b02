"""What one field of a table of nvidia-smi can be: a heading, a quantity, a placeholder, an identifier."""

from __future__ import annotations

import re

# First parts of the field names of --query-gpu, --query-compute-apps and their kin (nvidia-smi --help-query-gpu).
_KNOWN = (
    "accounting addressing_mode c2c clocks clocks_event_reasons clocks_throttle_reasons compute_cap compute_mode count "
    "display_active display_attached display_mode driver_model driver_version ecc encoder enforced fabric fan gom "
    "gpu_bus_id gpu_name gpu_serial gpu_uuid gpu_utilization gsp index inforom max_memory_usage mem_utilization memory "
    "mig mode name pci pcie persistence_mode pid power process_name protected_memory pstate remapped_rows "
    "retired_pages serial temperature time timestamp used_gpu_memory used_memory utilization uuid vbios_version vgpu "
    "vgpu_device_capability vgpu_driver_capability module gpu_recovery_action platform hostname dramEncryption "
    "gpu_operation_mode stats"
)
_FIELDS = frozenset(_KNOWN.split())
_UNITS = r"MiB|KiB|GiB|MB|KB|MHz|GHz|%|W|mW|°C|C|KB/s|MB/s|Mbps|Gbps|mJ|J|us|ms|s"
_ID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
HEADING = re.compile(r"(?P<name>[a-z][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?:\s*\[(?P<unit>[^\]]+)\])?")
QUANTITY = re.compile(rf"(-?\d+(?:\.\d+)?)\s*({_UNITS})")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PLACEHOLDERS = ("N/A", "ERR!", "Not Supported", "Unknown Error", "Insufficient Permissions")
_UNIT_HEADING = re.compile(rf"(?:[A-Za-z0-9_.]+\s*)?\[(?:{_UNITS})\]")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_UUID = re.compile(rf"(?:GPU|MIG)-{_ID}|MIG-GPU-{_ID}/\d+/\d+")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d")
_PRODUCT = re.compile(r"NVIDIA|GeForce|Tesla|Quadro|\bRTX\b|\bGTX\b")
_SENTENCE = re.compile(r"[:=]\s|=|[:=]$")


def is_placeholder(field: str) -> bool:
    """Whether it stands for a value that there is none of; every bracketed word does."""
    return field in PLACEHOLDERS or re.fullmatch(r"\[[A-Za-z][^\[\]]*\]", field) is not None


def is_known_placeholder(field: str) -> bool:
    """Whether it is one of the common placeholders, in brackets or not."""
    return field.removeprefix("[").removesuffix("]") in PLACEHOLDERS


def is_known_heading(field: str) -> bool:
    """Whether it is the heading of a field that nvidia-smi has."""
    match = HEADING.fullmatch(field)
    return match is not None and match["name"].split(".")[0] in _FIELDS


def has_heading(row: tuple[str, ...]) -> bool:
    """Whether it is no row of values but a heading or a part of one."""
    return any(map(_UNIT_HEADING.fullmatch, row)) or sum(map(is_known_heading, row)) > 1


def is_formed(field: str) -> bool:
    """Whether it is whole by its form: a quantity, a number or version, an identifier, a placeholder, a unit."""
    forms = (QUANTITY, NUMBER, _VERSION, _UUID, _BUS_ID, _UNIT_HEADING)
    return is_known_placeholder(field) or any(form.fullmatch(field) for form in forms)


def is_value_row(row: tuple[str, ...], spaced: bool) -> bool:
    """Whether something in a row is spelled as only nvidia-smi does, or all of it is numbers with a blank between."""
    if has_heading(row) or any(map(_SENTENCE.search, row)):
        return False
    if any(form.fullmatch(field) for form in (QUANTITY, _UUID, _BUS_ID) for field in row):
        return True
    if len(row) < 2:
        return row[0].startswith("[") and is_known_placeholder(row[0])
    named = any(is_placeholder(field) or _PRODUCT.search(field) for field in row)
    return named or (spaced and all(map(NUMBER.fullmatch, row)))
