"""Texts of nvidia-smi as facts: ``topo -m``, ``-L`` and ``--query-…=… --format=csv``."""

from __future__ import annotations

from typing import Any

from toolkit.host import smi_csv, smi_foreign, smi_list, smi_matrix, smi_table
from toolkit.host.smi_text import ambiguous, decoded, foreign, read_paste

__all__ = ["decoded", "parse"]


def parse(text: str) -> dict[str, Any]:
    """Facts of a pasted text, with ``kind`` ``topo``, ``list`` or ``csv``; what it doesn't say is None.

    Raises: ToolkitError when the text is of another kind (``saw``) or has two readings (``reason``).
    """
    paste = read_paste(text)
    lines = paste.output
    if (failure := smi_foreign.failure(lines)) is not None:
        raise foreign(failure)
    is_matrix, is_list = smi_matrix.looks_like(lines), smi_list.looks_like(lines)
    if is_matrix + is_list + smi_table.has_headings(lines) > 1:
        raise ambiguous("mixed", "it holds outputs of several commands; give one at a time")
    if is_matrix:
        return smi_matrix.parse(lines)
    if is_list:
        return smi_list.parse(lines)
    if smi_table.looks_like(lines):
        return smi_csv.parse(lines, paste.commands)
    raise foreign(smi_foreign.describe("\n".join(lines)))
