"""Server options: one for each field of a class, and a few calls."""

import argparse
from dataclasses import dataclass, field
from typing import Literal, Optional

from vllm.engine.arg_utils import EngineArgs, get_kwargs


@dataclass
class FrontendArgs:
    host: Optional[str] = None
    port: int = 8000
    uvicorn_log_level: Literal["debug", "info", "warning"] = "info"
    disable_uvicorn_access_log: bool = False
    allowed_origins: list[str] = field(default_factory=lambda: ["*"])
    api_key: Optional[list[str]] = None
    _internal: int = 0

    @staticmethod
    def add_cli_args(parser):
        for key, value in get_kwargs(FrontendArgs).items():
            if not key.startswith("_"):
                parser.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser


def make_arg_parser(parser):
    parser.add_argument("--headless", action="store_true", default=False)
    parser.add_argument("--config", help="Read options from a file.")
    parser.add_argument("--disable-log-requests", action=argparse.BooleanOptionalAction, default=True)
    return EngineArgs.add_cli_args(FrontendArgs.add_cli_args(parser))
