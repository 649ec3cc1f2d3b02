"""Options, each added by a call."""

import argparse
from dataclasses import dataclass


@dataclass
class ServerArgs:
    model_path: str
    host: str = "127.0.0.1"
    port: int = 30000
    tp_size: int = 1

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser):
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--host", type=str, default=ServerArgs.host)
        parser.add_argument("--port", type=int, default=ServerArgs.port)
        parser.add_argument("--dtype", type=str, default="auto", choices=["auto", "half", "float16", "bfloat16"])
        parser.add_argument("--context-length", type=int, default=None)
        parser.add_argument("--served-model-name", type=str, default=None)
        parser.add_argument("--mem-fraction-static", type=float, default=None)
        parser.add_argument("--max-running-requests", type=int, default=None)
        parser.add_argument("--max-total-tokens", type=int, default=None)
        parser.add_argument("--tensor-parallel-size", "--tp-size", type=int, default=ServerArgs.tp_size, dest="tp_size")
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--attention-backend", choices=["flashinfer", "triton", "torch_native", "fa3"])
        parser.add_argument("--disable-cuda-graph", action="store_true")
        parser.add_argument("--cuda-graph-bs", type=int, nargs="+")
        parser.add_argument("--base-gpu-id", type=int, default=0)
