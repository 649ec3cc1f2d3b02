from __future__ import annotations

from pathlib import Path

from toolkit.supervise import launch_files


def test_files_are_there_whole_and_private_with_their_folders(tmp_path: Path) -> None:
    path = tmp_path / "run" / "llm" / "options.yaml"
    launch_files.write({path: "a: 1\n"})
    launch_files.write({path: "a: 2\n"})
    assert path.read_text() == "a: 2\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
