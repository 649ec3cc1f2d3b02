"""Engine options, each added by a call."""

import argparse
from dataclasses import dataclass


def nullable_str(value):
    return None if value in ("", "None") else value


@dataclass
class EngineArgs:
    model: str = "facebook/opt-125m"
    dtype: str = "auto"
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.90

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model", type=str, default=EngineArgs.model, help="Name or path of the model.")
        parser.add_argument("--tokenizer", type=nullable_str, default=None)
        parser.add_argument(
            "--dtype",
            type=str,
            default=EngineArgs.dtype,
            choices=["auto", "half", "float16", "bfloat16", "float", "float32"],
        )
        parser.add_argument("--kv-cache-dtype", type=str, choices=["auto", "fp8"], default="auto")
        parser.add_argument("--max-model-len", type=int, default=None)
        parser.add_argument("--distributed-executor-backend", choices=["ray", "mp"], default=None)
        parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
        parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=EngineArgs.tensor_parallel_size)
        parser.add_argument("--block-size", type=int, default=16, choices=[8, 16, 32])
        parser.add_argument("--enable-prefix-caching", action="store_true")
        parser.add_argument("--gpu-memory-utilization", type=float, default=EngineArgs.gpu_memory_utilization)
        parser.add_argument("--max-num-seqs", type=int, default=256)
        parser.add_argument("--served-model-name", nargs="+", type=str, default=None)
        parser.add_argument("--enforce-eager", action="store_true")
        parser.add_argument("--use-v2-block-manager", action=argparse.BooleanOptionalAction, default=True)
        return parser
