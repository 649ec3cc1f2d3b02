"""``python -m sglang.launch_server``, standing in."""

import argparse
import os
import sys

import standin_server

from sglang.srt.server_args import ServerArgs

if __name__ == "__main__":
    parser = argparse.ArgumentParser("sglang", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    args = parser.parse_args()
    standin_server.record(vars(args))
    devices = [each for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if each]
    if args.tp_size * getattr(args, "pp_size", 1) > len(devices):
        sys.exit(f"RuntimeError: {args.tp_size} ranks do not fit on {len(devices)} devices")
    routes = {"/health": "health", "/health_generate": "generate", "/v1/completions": "completions"}
    if args.enable_metrics:
        routes["/metrics"] = "metrics"
    standin_server.serve(args.host, args.port, args.served_model_name or args.model_path, routes)
