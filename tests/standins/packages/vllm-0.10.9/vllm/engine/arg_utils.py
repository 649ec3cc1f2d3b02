"""Engine options: the form of each comes from the annotation of a configuration's field."""

import argparse
import json
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vllm.config import CacheConfig, ModelConfig, ParallelConfig


def members(hint):
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        return [each for part in get_args(hint) for each in members(part)]
    return [hint]


def get_kwargs(cls) -> dict[str, dict[str, Any]]:
    hints = get_type_hints(cls, localns={"torch.dtype": object, "torch": type("torch", (), {"dtype": object})})
    return {name: kwargs_of(members(hint)) for name, hint in hints.items()}


def kwargs_of(kinds) -> dict[str, Any]:
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction, "default": None}
    literals = [kind for kind in kinds if get_origin(kind) is Literal]
    if literals:
        words = list(get_args(literals[0]))
        return {"type": type(words[0]), **({} if str in kinds else {"choices": words})}
    lists = [kind for kind in kinds if get_origin(kind) is list]
    if lists:
        return {"type": get_args(lists[0])[0], "nargs": "+"}
    if any(get_origin(kind) is dict for kind in kinds):
        return {"type": json.loads}
    return {"type": next(kind for kind in (int, float, str) if kind in kinds)}


class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        model_group = parser.add_argument_group(title="ModelConfig")
        model_group.add_argument("--model", **model_kwargs["model"])
        model_group.add_argument("--tokenizer", **model_kwargs["tokenizer"])
        model_group.add_argument("--dtype", **model_kwargs["dtype"])
        model_group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        model_group.add_argument("--served-model-name", **model_kwargs["served_model_name"])
        model_group.add_argument("--enforce-eager", **model_kwargs["enforce_eager"])
        model_group.add_argument("--hf-overrides", **model_kwargs["hf_overrides"])
        parallel_kwargs = get_kwargs(ParallelConfig)
        parallel_group = parser.add_argument_group(title="ParallelConfig")
        parallel_group.add_argument("--distributed-executor-backend", **parallel_kwargs["distributed_executor_backend"])
        parallel_group.add_argument("--pipeline-parallel-size", "-pp", **parallel_kwargs["pipeline_parallel_size"])
        parallel_group.add_argument("--tensor-parallel-size", "-tp", **parallel_kwargs["tensor_parallel_size"])
        cache_kwargs = get_kwargs(CacheConfig)
        cache_group = parser.add_argument_group(title="CacheConfig")
        cache_group.add_argument("--block-size", **cache_kwargs["block_size"])
        cache_group.add_argument("--gpu-memory-utilization", **cache_kwargs["gpu_memory_utilization"])
        cache_group.add_argument("--kv-cache-memory-bytes", **cache_kwargs["kv_cache_memory_bytes"])
        cache_group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        cache_group.add_argument("--enable-prefix-caching", **{**cache_kwargs["enable_prefix_caching"], "help": ""})
        return parser
