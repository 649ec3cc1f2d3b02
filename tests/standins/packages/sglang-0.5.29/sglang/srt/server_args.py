"""Options: annotated fields of classes, and one call."""

import dataclasses
from typing import Optional

from sglang.srt.arg_groups.arg_utils import A, Arg, add_cli_args_from_dataclass
from sglang.srt.arg_groups.fields.model import ModelFields

ATTENTION_BACKEND_CHOICES = ["triton", "torch_native", "fa3", "fa4", "flashinfer"]


@dataclasses.dataclass
class ServerFields:
    host: A[str, "The host of the HTTP server."] = "127.0.0.1"
    port: A[int, "The port of the HTTP server."] = 30000
    mem_fraction_static: A[Optional[float], "Weights and KV cache."] = None
    max_running_requests: A[Optional[int], "Requests at once."] = None
    max_total_tokens: A[Optional[int], Arg(help="Tokens of the pool.", type_parser=int)] = None
    tp_size: A[int, Arg(help="Tensor parallelism.", aliases=["--tensor-parallel-size"])] = 1
    pp_size: A[int, Arg(help="Pipeline parallelism.", aliases=["--pipeline-parallel-size"])] = 1
    enable_metrics: A[bool, "Count."] = False
    attention_backend: A[Optional[str], Arg(help="Kernels.", choices=ATTENTION_BACKEND_CHOICES)] = None
    cuda_graph_bs: A[Optional[list[int]], "Batch sizes."] = None
    base_gpu_id: A[int, "The first GPU."] = 0
    numa_node: A[Optional[list[int]], "Where to bind."] = None


class ServerArgs(ModelFields, ServerFields):
    @staticmethod
    def add_cli_args(parser):
        for fields in (ModelFields, ServerFields):
            add_cli_args_from_dataclass(parser, fields)
        parser.add_argument("--config", type=str, help="Read options from a file.")
        parser.set_defaults(host="127.0.0.1", port=30000, tp_size=1, pp_size=1)
