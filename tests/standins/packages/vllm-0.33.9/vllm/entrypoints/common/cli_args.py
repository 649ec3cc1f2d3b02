"""Server options: one for each field of a class and of what it inherits, and a few calls."""

from dataclasses import dataclass, field
from typing import Literal

from vllm.engine.arg_utils import EngineArgs, get_kwargs


@dataclass
class BaseFrontendArgs:
    chat_template: str | None = None
    enable_auto_tool_choice: bool = False

    @classmethod
    def add_cli_args(cls, parser):
        for key, value in get_kwargs(cls).items():
            parser.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser


@dataclass
class FrontendArgs(BaseFrontendArgs):
    host: str | None = None
    port: int = 8000
    uvicorn_log_level: Literal["debug", "info", "warning"] = "info"
    allowed_origins: list[str] = field(default_factory=lambda: ["*"])
    api_key: list[str] | None = None


def make_arg_parser(parser):
    parser.add_argument("--headless", action="store_true", default=False)
    parser.add_argument("--config", help="Read options from a file.")
    return EngineArgs.add_cli_args(FrontendArgs.add_cli_args(parser))
