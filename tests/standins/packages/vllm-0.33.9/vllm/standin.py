"""``vllm serve``, standing in."""

import standin_programs

from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.platforms.cuda import physical_device_ids


def main():
    standin_programs.vllm(make_arg_parser, physical_device_ids)
