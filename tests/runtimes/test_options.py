from __future__ import annotations

import pytest

from toolkit.errors import ToolkitError
from toolkit.runtimes.options import Option, argv

KNOWN = {
    "max_queue": Option("--max-queue", "count"),
    "share": Option("--share", "number"),
    "dtype": Option("--dtype", "text", ("float32", "bfloat16")),
}


def test_options_become_flags_in_the_order_written():
    assert argv("llm", {"dtype": "float32", "max_queue": 4, "share": 0.5}, KNOWN) == (
        *("--dtype", "float32"),
        *("--max-queue", "4"),
        *("--share", "0.5"),
    )


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(ToolkitError) as caught:
        argv("llm", {"max_que": 4}, KNOWN)
    assert (caught.value.where, caught.value.what) == ("services.llm.options.max_que", "unknown option 'max_que'")
    assert caught.value.hint == "Did you mean 'max_queue'?"


@pytest.mark.parametrize(
    "options",
    [
        {"max_queue": 0}, {"max_queue": "4"}, {"max_queue": True}, {"max_queue": 1.5}, {"share": -1}, {"share": "half"},
        {"share": float("nan")}, {"share": float("inf")}, {"dtype": ""}, {"dtype": 32}, {"dtype": "float16"},
    ],
)  # fmt: skip
def test_a_value_the_program_would_refuse_is_refused_before_it_starts(options: dict[str, object]):
    with pytest.raises(ToolkitError) as caught:
        argv("llm", options, KNOWN)
    assert caught.value.code == "bad_option"
    assert caught.value.where == f"services.llm.options.{next(iter(options))}"


def test_a_program_without_options_says_so_by_refusing_all():
    with pytest.raises(ToolkitError, match="unknown option 'x'"):
        argv("llm", {"x": 1}, {})
