"""What the stand-ins of one program have in common, whatever their release. Copied beside them."""

import argparse
import os
import sys

import standin_server


def vllm(make_arg_parser, physical_device_ids):
    """``vllm serve``: refuses what its parser refuses, dies where the release dies, else answers."""
    parser = argparse.ArgumentParser("vllm", allow_abbrev=False)
    serve = parser.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("model_tag", nargs="?")
    make_arg_parser(serve)
    args = parser.parse_args()
    standin_server.record(vars(args))
    _fit((args.tensor_parallel_size or 1) * (args.pipeline_parallel_size or 1), physical_device_ids())
    name = (args.served_model_name or [args.model_tag])[0]
    routes = {"/health": "health", "/v1/models": "models", "/metrics": "metrics", "/v1/completions": "completions"}
    standin_server.serve(args.host or "127.0.0.1", args.port, name, routes)


def sglang(add_cli_args):
    """``python -m sglang.launch_server``."""
    parser = argparse.ArgumentParser("sglang", allow_abbrev=False)
    add_cli_args(parser)
    args = parser.parse_args()
    standin_server.record(vars(args))
    devices = [each for each in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if each]
    _fit(args.tp_size * getattr(args, "pp_size", 1), devices)
    routes = {"/health": "health", "/health_generate": "generate", "/v1/completions": "completions"}
    if args.enable_metrics:
        routes["/metrics"] = "metrics"
    standin_server.serve(args.host, args.port, args.served_model_name or args.model_path, routes)


def _fit(ranks, devices):
    if ranks > len(devices):
        sys.exit(f"ValueError: {ranks} ranks do not fit on {len(devices)} devices")
