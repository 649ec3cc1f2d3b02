from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.store.history import Past, last, remember


def test_the_last_build_of_each_name_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    assert last(path, "llm") is None
    remember(path, "llm", Past(100.0, 5))
    remember(path, "embed", Past(3.0, 1))
    remember(path, "llm", Past(90.5, 6))
    assert last(path, "llm") == Past(90.5, 6)
    assert last(path, "embed") == Past(3.0, 1)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"schema": 1}', '{"schema": 1, "builds": {"llm": {}}}', '{"schema": 1, "builds": 3}']
)
def test_a_damaged_history_remembers_nothing_and_can_be_written_again(tmp_path: Path, content: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(content)
    assert last(path, "llm") is None
    remember(path, "llm", Past(1.0, 2))
    assert last(path, "llm") == Past(1.0, 2)
