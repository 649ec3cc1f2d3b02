"""A stand-in for a conversion script: takes what such scripts take, and can fail as they do."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main(argv: list[str], fail: str | None) -> int:
    parser = argparse.ArgumentParser("convert_checkpoint.py", allow_abbrev=False)
    parser.add_argument("--model_dir", required=True)
    parser.add_argument("--output_dir", default="tllm_checkpoint")
    parser.add_argument("--dtype", default="float16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--tp_size", type=int, default=1)
    parser.add_argument("--pp_size", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args(argv)
    model = json.loads((Path(args.model_dir) / "config.json").read_text())
    world_size = args.tp_size * args.pp_size
    mapping = {"world_size": world_size, "tp_size": args.tp_size, "pp_size": args.pp_size}
    if fail == "other_mapping":
        mapping["tp_size"] = mapping["world_size"] = 1
    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    config = {
        "architecture": model["architectures"][0], "dtype": args.dtype, "mapping": mapping,
        "num_attention_heads": model["num_attention_heads"],
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }  # fmt: skip
    (output / "config.json").write_text(json.dumps(config))
    for rank in range(world_size - (1 if fail == "missing_rank" else 0)):
        (output / f"rank{rank}.safetensors").write_bytes(b"weights of a rank")
        if fail == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    if fail == "hang":
        time.sleep(600)
    if fail == "disk_full":
        print("OSError: [Errno 28] No space left on device", file=sys.stderr)
        return 1
    return 0
