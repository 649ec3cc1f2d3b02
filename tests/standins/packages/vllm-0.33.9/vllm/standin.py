"""``vllm serve``, standing in: refuses what its parser refuses, dies where the release dies, else answers."""

import argparse
import sys

import standin_server

from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.platforms.cuda import physical_device_ids


def main():
    parser = argparse.ArgumentParser("vllm", allow_abbrev=False)
    serve = parser.add_subparsers(required=True).add_parser("serve", allow_abbrev=False)
    serve.add_argument("model_tag", nargs="?")
    make_arg_parser(serve)
    run(parser.parse_args())


def run(args):
    standin_server.record(vars(args))
    devices = physical_device_ids()
    if (args.tensor_parallel_size or 1) * (args.pipeline_parallel_size or 1) > len(devices):
        sys.exit(f"ValueError: {args.tensor_parallel_size} ranks do not fit on {len(devices)} devices")
    name = (args.served_model_name or [args.model_tag])[0]
    routes = {"/health": "health", "/v1/models": "models", "/metrics": "metrics", "/v1/completions": "completions"}
    standin_server.serve(args.host or "127.0.0.1", args.port, name, routes)
