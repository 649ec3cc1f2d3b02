"""The cache."""

from dataclasses import dataclass
from typing import Literal, Optional

CacheDType = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]


@dataclass
class CacheConfig:
    block_size: Literal[1, 8, 16, 32, 64, 128] | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_memory_bytes: Optional[int] = None
    cache_dtype: CacheDType = "auto"
    enable_prefix_caching: Optional[bool] = None
