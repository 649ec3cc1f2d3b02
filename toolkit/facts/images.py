"""What is known to be in published container images."""

from __future__ import annotations

import functools
import re
from typing import Any

from toolkit.facts.load import HERE, parse

FILE = "triton_images.yaml"
_TRITON = re.compile(r"(?:.*/)?tritonserver:(\d\d\.\d\d)-trtllm-python-py3")


@functools.lru_cache(maxsize=1)
def triton() -> dict[str, dict[str, Any]]:
    """The rows of Triton's images with the TensorRT-LLM back end, by release."""
    return {str(row["release"]): row for row in parse((HERE / FILE).read_bytes())["rows"]}


def image_versions(image: str) -> dict[str, str]:
    """Versions of what a published image holds, by package, ``python`` and ``cuda``; empty: nothing is known of it."""
    match = _TRITON.fullmatch(image)
    row = triton().get(match[1]) if match else None
    if match is None or row is None:
        return {}
    known = {key: str(value) for key, value in row.items() if key not in ("release", "source")}
    return {"tritonserver": match[1], **known}
