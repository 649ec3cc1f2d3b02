"""Attention."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class AttentionBackendEnum(Enum):
    FLASH_ATTN = "vllm.attention.flash"
    TRITON_ATTN = "vllm.attention.triton"


@dataclass
class AttentionConfig:
    backend: AttentionBackendEnum | None = None
    flash_attn_version: Literal[2, 3, 4] | None = None


@dataclass
class VllmConfig:
    attention_config: AttentionConfig | None = None
