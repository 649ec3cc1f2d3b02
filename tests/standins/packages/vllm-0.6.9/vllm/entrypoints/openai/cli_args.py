"""Server options, each added by a call."""

from vllm.engine.arg_utils import EngineArgs, nullable_str


def make_arg_parser(parser):
    parser.add_argument("--host", type=nullable_str, default=None, help="host name")
    parser.add_argument("--port", type=int, default=8000, help="port number")
    parser.add_argument("--uvicorn-log-level", type=str, default="info", choices=["debug", "info", "warning"])
    parser.add_argument("--api-key", type=nullable_str, default=None)
    parser.add_argument("--root-path", type=nullable_str, default=None)
    parser.add_argument("--disable-log-requests", action="store_true")
    return EngineArgs.add_cli_args(parser)
