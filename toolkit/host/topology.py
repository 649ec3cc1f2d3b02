"""Texts of nvidia-smi as facts: ``topo -m``, ``-L`` and ``--query-…=… --format=csv``."""

from __future__ import annotations

from typing import Any

from toolkit.host import smi_csv, smi_foreign, smi_list, smi_matrix
from toolkit.host.smi_text import ambiguous, clean_lines, foreign, is_prompt


def parse(text: str) -> dict[str, Any]:
    """Facts of a pasted text, with ``kind`` ``topo``, ``list`` or ``csv``; what it doesn't say is None.

    Raises: ToolkitError when the text is of another kind (``saw``) or has two readings (``reason``).
    """
    lines = clean_lines(text)
    output = [line for line in lines if not is_prompt(line)]
    is_matrix, is_list = smi_matrix.looks_like(output), smi_list.looks_like(output)
    if is_matrix and is_list:
        raise ambiguous("mixed", "it holds a matrix and a list of GPUs; give one at a time")
    if is_matrix:
        return smi_matrix.parse(lines)
    if is_list:
        return smi_list.parse(lines)
    if smi_csv.looks_like(lines):
        return smi_csv.parse(lines)
    raise foreign(smi_foreign.describe("\n".join(output)))
