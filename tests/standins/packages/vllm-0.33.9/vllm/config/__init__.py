"""Configurations whose fields become options."""

from dataclasses import dataclass, field
from typing import Any, Literal, Union

from vllm.config.cache import CacheConfig

ModelDType = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]
DistributedExecutorBackend = Literal["ray", "mp", "uni"]


@dataclass
class ModelConfig:
    model: str = "Qwen/Qwen3-0.6B"
    tokenizer: str | None = None
    dtype: Union[ModelDType, "torch.dtype"] = "auto"  # noqa: F821
    max_model_len: int | None = None
    served_model_name: str | list[str] | None = None
    enforce_eager: bool = False
    hf_overrides: dict[str, Any] = field(default_factory=dict)


@dataclass
class ParallelConfig:
    pipeline_parallel_size: int = 1
    tensor_parallel_size: int = 1
    distributed_executor_backend: str | DistributedExecutorBackend | None = None


__all__ = ["CacheConfig", "ModelConfig", "ParallelConfig"]
