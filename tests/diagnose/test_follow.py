from __future__ import annotations

from pathlib import Path

from toolkit.diagnose.follow import follow


def test_each_change_of_the_diagnosis_is_told_once_as_the_log_grows(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("Loading weights:  10%| | 1/10 [00:01<?, ?it/s]\n")
    writes = iter(
        ["Loading weights:  20%| | 2/10 [00:01<?, ?it/s]\n", "OSError: [Errno 98] Address already in use\n", ""]
    )
    left = [3]

    def sleep(_: float) -> None:
        with log.open("a") as file:
            file.write(next(writes))
        left[0] -= 1

    found = list(follow(log, goes_on=lambda: left[0] > 0, sleep=sleep))
    assert [(each.kind, each.root_line) for each in found] == [("healthy", None), ("port_in_use", 3)]
