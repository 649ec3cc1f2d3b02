"""Options from annotated fields."""

import dataclasses
import types
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

A = Annotated


@dataclasses.dataclass(frozen=True)
class Arg:
    help: str = ""
    choices: Any = None
    aliases: tuple = ()
    type_parser: Any = None
    no_cli: bool = False


def add_cli_args_from_dataclass(parser, cls):
    for name, hint in get_type_hints(cls, include_extras=True).items():
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        arg = next(
            (note if isinstance(note, Arg) else Arg(note) for note in notes if isinstance(note, (Arg, str))), None
        )
        if arg is not None and not arg.no_cli:
            kinds = get_args(hint)[0]
            inner = (
                next((k for k in get_args(kinds) if k is not type(None)), kinds)
                if (get_origin(kinds) is Union or isinstance(kinds, types.UnionType))
                else kinds
            )
            add(parser, name, inner, arg)


def add(parser, name, inner, arg):
    names = ["--" + name.replace("_", "-"), *arg.aliases]
    if inner is bool:
        parser.add_argument(*names, action="store_true", dest=name)
    elif get_origin(inner) is list:
        parser.add_argument(*names, type=get_args(inner)[0], nargs="+", dest=name)
    else:
        kind = arg.type_parser or inner
        parser.add_argument(*names, type=kind, choices=arg.choices and list(arg.choices), dest=name)
