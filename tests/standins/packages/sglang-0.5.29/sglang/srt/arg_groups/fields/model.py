"""Of the model."""

import dataclasses
from typing import Optional

from sglang.srt.arg_groups.arg_utils import A, Arg

DTYPES = ["auto", "half", "float16", "bfloat16"]


@dataclasses.dataclass
class ModelFields:
    model_path: A[str, Arg(help="Where the model is.", aliases=["--model"])] = ""
    served_model_name: A[Optional[str], "Override the model name."] = None
    dtype: A[str, Arg(help="Element type.", choices=DTYPES)] = "auto"
    context_length: A[Optional[int], Arg(help="Longest request.", type_parser=lambda text: int(text))] = None
    secret: A[str, Arg(no_cli=True)] = ""
    plain: int = 0
