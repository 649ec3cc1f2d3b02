from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.fakes import write_tokenizer
from toolkit.errors import ToolkitError
from toolkit.serve.text import IncrementalText, StopMatcher
from toolkit.serve.tokenizer import TextTokenizer


def decode(ids: object) -> str:
    return bytes(ids).decode(errors="replace")  # type: ignore[call-overload,no-any-return]


@given(st.text(st.characters(exclude_characters="\N{REPLACEMENT CHARACTER}", codec="utf-8")))
def test_pieces_add_up_to_the_text_and_each_holds_whole_characters(text: str) -> None:
    incremental = IncrementalText(decode)
    pieces = [incremental.push(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_half_a_character_at_the_end_is_never_told() -> None:
    incremental = IncrementalText(decode)
    assert [incremental.push(byte) for byte in "a🎉".encode()[:-1]] == ["a", "", "", ""]


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back_forever() -> None:
    incremental = IncrementalText(decode)
    pieces = [incremental.push(0xFF) for _ in range(20)]
    assert any(pieces)
    assert "".join([*pieces, incremental.push(ord("x"))]).endswith("x")


@given(st.text("abE ND", max_size=30), st.lists(st.text("abEND", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_and_nothing_else_is_lost(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    told, stopped = "", False
    for character in text:
        safe, stopped = matcher.push(character)
        told += safe
        if stopped:
            break
    else:
        told += matcher.flush()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (told, stopped) == (text, False)
        return
    # One character at a time, the stop that ends first is met first; of those that end together, the longest cuts.
    first = min(ends)
    begin = min(text.find(stop) for stop in stops if stop in text[:first])
    assert (told, stopped) == (text[:begin], True)


def test_only_what_may_start_a_stop_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("abc") == ("abc", False)
    assert matcher.push("E") == ("", False)
    assert matcher.push("N") == ("", False)
    assert matcher.push("x") == ("ENx", False)
    assert matcher.push("xEND rest") == ("x", True)
    assert matcher.flush() == ""


# The tokenizer.


def test_ids_and_text_go_round(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.encode("né") == tuple("né".encode())
    assert tokenizer.decode([*"né".encode(), 256]) == "né"


def test_a_token_that_is_no_whole_character_is_told_by_its_bytes(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.token_bytes(0xC3) == b"\xc3"
    assert tokenizer.token_text(0xC3) == "bytes:\\xc3"
    assert tokenizer.token_text(ord(" ")) == " "
    assert tokenizer.token_text(256) == "<eos>"


def test_a_template_file_goes_before_the_configuration_s(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ eos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}"
    )
    tokenizer = TextTokenizer.load(tmp_path)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render(messages) == "<eos>hi>"
    assert tokenizer.chat(messages)[0] == 256


def test_named_templates_have_a_default(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    templates = [{"name": "tools", "template": "no"}, {"name": "default", "template": "yes"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert TextTokenizer.load(tmp_path).render([]) == "yes"


def test_without_a_template_chat_says_what_to_use(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="/v1/completions"):
        TextTokenizer.load(tmp_path).chat([])


@pytest.mark.parametrize(
    "template", ["{{ messages.__class__.__mro__[1].__subclasses__() }}", "{{ 1 / 0 }}", "{% if %}", "{{ none.x.y }}"]
)
def test_a_template_can_neither_leave_its_sandbox_nor_crash_the_server(tmp_path: Path, template: str) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ValueError, match="refuses these messages"):
        TextTokenizer.load(tmp_path).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(("content", "says"), [(None, "missing"), ("{", "not a tokenizer"), ("{}", "not a tokenizer")])
def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ToolkitError, match=says):
        TextTokenizer.load(tmp_path)
