from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.config.conftest import Write
from toolkit.config.document import MAX_FILE_BYTES, read
from toolkit.errors import ToolkitError


def faults_of(file: Path) -> list[tuple[int | None, str]]:
    return [(fault.line, fault.what) for fault in read(file).faults]


def test_every_key_has_its_line(write: Write) -> None:
    document = read(write("a:\n  b: 1\n  c:\n  - x\n  - y: 2\n"))
    assert document.content == {"a": {"b": 1, "c": ["x", {"y": 2}]}}
    assert [document.line(path) for path in ("a", "a.b", "a.c", "a.c[0]", "a.c[1].y")] == [1, 2, 3, 4, 5]


def test_keys_with_dots_keep_their_line(write: Write) -> None:
    assert read(write("engines:\n  x: 1\n  llama-3.1: {recipe: r}\n")).line("engines.llama-3.1.recipe") == 3


def test_plain_words_stay_words(write: Write) -> None:
    text = "a: [yes, on, off, 12:30, 2026-11-29, 1_000, 0x10, .inf]\n"
    assert read(write(text)).content["a"] == ["yes", "on", "off", "12:30", "2026-11-29", "1_000", "0x10", ".inf"]


def test_numbers_truth_and_nothing_are_values(write: Write) -> None:
    assert read(write("a: [1, -2, 3.5, 1e3, true, False, null, ~, '1']\n")).content["a"] == [
        *(1, -2, 3.5, 1000.0, True, False, None, None, "1")
    ]


def test_a_key_written_twice_names_both_lines(write: Write) -> None:
    assert faults_of(write("a: 1\nb: 2\na: 3\n")) == [(3, "'a' is written twice; first in line 1")]


def test_a_key_that_is_no_text_is_refused(write: Write) -> None:
    assert faults_of(write("1: a\ntrue: b\n[x]: c\n")) == [
        (1, "the key '1' is not a text"),
        (2, "the key 'true' is not a text"),
        (3, "a key is neither a plain mapping, list nor value"),
    ]


def test_tags_are_refused(write: Write) -> None:
    (fault,) = faults_of(write("a: !!python/object/apply:os.system [ls]\n"))
    assert fault[1] == "is neither a plain mapping, list nor value"
    (fault,) = faults_of(write("a: !secret x\n"))
    assert fault[1] == "has the tag '!secret', which is not allowed here"


def test_merged_keys_give_way_to_own_ones(write: Write) -> None:
    document = read(write("a: &base {x: 1, y: 2}\nb:\n  <<: *base\n  y: 3\n"))
    assert document.content["b"] == {"x": 1, "y": 3}
    assert document.faults == ()


def test_the_first_of_several_merged_mappings_wins(write: Write) -> None:
    assert read(write("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}\n")).content["c"] == {"x": 1, "y": 2}


def test_only_mappings_are_merged(write: Write) -> None:
    assert faults_of(write("a: {<<: 3}\n")) == [(1, "'<<' merges a mapping, or a list of mappings")]


def test_aliases_that_multiply_are_stopped(write: Write) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 12)]
    with pytest.raises(ToolkitError, match="too many values"):
        read(write("\n".join(lines)))


def test_an_alias_of_itself_is_stopped(write: Write) -> None:
    with pytest.raises(ToolkitError, match="nested too deeply"):
        read(write("a: &a [*a]\n"))


@pytest.mark.parametrize("depth", [100, 20_000])
def test_deep_nesting_is_stopped(write: Write, depth: int) -> None:
    with pytest.raises(ToolkitError, match="nested too deeply"):
        read(write("a: " + "[" * depth + "]" * depth))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("a:\n\tb: 1\n", 2, "a tab where YAML allows spaces only. Indent with spaces."),
        ("a: b: c\n", 1, "mapping values are not allowed here (column 5). Put a text with ': ' in quotes"),
        ("a: 1\n---\nb: 2\n", 2, "One file is one document: remove the '---' line."),
        (
            "a:\n  b: 1\n c: 2\n",
            3,
            "what begins here does not belong to what is before it (column 2). Check the indent",
        ),
        ('a: "say "hi""\n', 1, "what begins here does not belong to what is before it (column 10)."),
        ("a: [1, 2\n", 2, "is not YAML: expected ',' or ']'"),
        ("a: *nobody\n", 1, "found undefined alias"),
        ("a: 'x\n", 2, "found unexpected end of stream"),
    ],
)
def test_broken_yaml_names_line_and_problem(write: Write, text: str, line: int, says: str) -> None:
    file = write(text)
    with pytest.raises(ToolkitError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"\n', "a: \x07\n", "%YAML 9.9\n---\na: 1\n"])
def test_what_is_no_yaml_at_all_is_refused(write: Write, text: str) -> None:
    with pytest.raises(ToolkitError, match="is not YAML"):
        read(write(text))


@pytest.mark.parametrize("escape", ["\\0", "\\ud800"])
def test_characters_that_are_no_text_are_refused(write: Write, escape: str) -> None:
    (fault,) = faults_of(write(f'a: "x{escape}"\n'))
    assert fault[1].startswith("holds a character that is no text")


def test_a_text_that_is_not_utf_8_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"a: 1\nb: caf\xe9\n")
    with pytest.raises(ToolkitError, match=r"latin\.yaml:2: is not UTF-8 text\. Save it as UTF-8\."):
        read(file)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "bom.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read(file).content == {"a": 1}


def test_a_missing_file_names_its_neighbours(write: Write) -> None:
    file = write("a: 1\n")
    with pytest.raises(ToolkitError) as caught:
        read(file.with_name("quickstart.yaml"))
    assert caught.value.what == "no such file"
    assert caught.value.hint == f"There is {file}."


def test_a_misspelt_file_names_the_nearest_alone(write: Write) -> None:
    file = write("a: 1\n")
    with pytest.raises(ToolkitError) as caught:
        read(file.with_name("ndoe.yaml"))
    assert caught.value.hint == f"Did you mean '{file}'?"


def test_of_many_neighbours_it_is_told_how_many_are_left_out(tmp_path: Path) -> None:
    for number in range(7):
        (tmp_path / f"{number}.yaml").touch()
    with pytest.raises(ToolkitError) as caught:
        read(tmp_path / "gone.yaml")
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("4.yaml and 2 more.")


def test_a_missing_file_in_an_empty_folder_points_at_init(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="coexist init"):
        read(tmp_path / "none.yaml")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is a folder, not a file"):
        read(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ToolkitError, match="is not a regular file"):
        read(tmp_path / "pipe")


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ToolkitError):
        read(Path("a\0b.yaml"))


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "huge.yaml"
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ToolkitError, match="too large"):
        read(file)
