from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.supervise import process, state
from toolkit.supervise.state import Owner, StateFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    made = StateFolder(tmp_path / "state")
    made.open("rag")
    yield made
    made.close()


def me() -> Owner:
    identity = process.own_identity()
    return Owner("rag", identity.pid, identity.start_ticks, "c00c1e", 1234)


def test_two_supervisors_cannot_have_one_folder(folder: StateFolder) -> None:
    folder.write_owner(me())
    other = StateFolder(folder.path)
    with pytest.raises(ToolkitError, match=rf"'rag' already runs \(supervisor pid {os.getpid()}\)"):
        other.open("rag")


def test_a_folder_can_be_taken_again_after_it_was_let_go(tmp_path: Path) -> None:
    for _ in range(2):
        folder = StateFolder(tmp_path / "state")
        assert folder.open("rag") is None
        folder.write_owner(me())
        folder.close()
        assert folder.owner() is None


def test_a_lock_of_a_dead_process_is_no_lock_and_its_owner_is_told(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from toolkit.supervise.state import *;"
        "folder = StateFolder(Path(sys.argv[1])); folder.open('rag');"
        "folder.write_owner(Owner('rag', os.getpid(), 1, 'c00c1e')); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    folder = StateFolder(tmp_path)
    previous = folder.open("rag")
    folder.close()
    assert previous is not None
    assert (previous.cookie, previous.alive) == ("c00c1e", False)


def test_a_pid_that_was_given_to_another_process_is_not_alive() -> None:
    assert me().alive
    assert not replace(me(), start_ticks=1).alive


def test_only_the_owner_can_look_into_the_folder(folder: StateFolder) -> None:
    folder.append_event({"kind": "log"})
    folder.write_status({"schema": 1})
    paths = [folder.path, folder.logs, folder.events_file, folder.status_file]
    assert [oct(path.stat().st_mode & 0o077) for path in paths] == ["0o0"] * 4


def test_a_status_is_whole_or_the_one_before(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write_status({"schema": 1})

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        folder.write_status({"schema": 2})
    assert folder.status() == {"schema": 1}
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_a_torn_last_line_is_passed_over_and_does_not_swallow_the_next(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(b'{"id":1}\n{"id":2}\n{"id":')
    folder = StateFolder(tmp_path)
    folder.open("rag")
    folder.append_event({"id": 4})
    folder.close()
    assert list(folder.events()) == [{"id": 1}, {"id": 2}, {"id": 4}]


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=5), st.data())
def test_a_file_torn_anywhere_gives_the_events_before_the_tear(
    tmp_path_factory: pytest.TempPathFactory, told: list[dict[str, int]], data: st.DataObject
) -> None:
    lines = [json.dumps(event).encode() + b"\n" for event in told]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    path = tmp_path_factory.mktemp("torn") / "events.jsonl"
    path.write_bytes(text[:cut])
    whole = text[:cut].count(b"\n")
    assert list(state.read_events(path))[:whole] == told[:whole]


def test_no_events_file_is_no_events(tmp_path: Path) -> None:
    assert list(state.read_events(tmp_path / "none.jsonl")) == []


def test_a_long_event_log_begins_anew_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_EVENTS_BYTES", 10)
    (tmp_path / "events.jsonl").write_text('{"id":1,"kind":"log"}\n')
    folder = StateFolder(tmp_path)
    folder.open("rag")
    folder.close()
    assert list(folder.events()) == []
    assert list(state.read_events(tmp_path / "events.1.jsonl")) == [{"id": 1, "kind": "log"}]


def test_damaged_files_read_as_absent(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.status_file.write_text('{"schema": ')
    folder.owner_file.write_text('{"pid": 1}')
    assert (folder.status(), folder.owner()) == (None, None)


def test_what_a_killed_supervisor_was_writing_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "attempts").mkdir()
    for name in (".status.json.x1.tmp", "attempts/.web.json.x2.tmp"):
        (tmp_path / name).touch()
    folder = StateFolder(tmp_path)
    folder.open("rag")
    folder.close()
    assert [path.name for path in tmp_path.rglob("*.tmp")] == []
