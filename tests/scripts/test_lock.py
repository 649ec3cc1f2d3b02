from __future__ import annotations

from pathlib import Path

import lock

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"


def test_a_lock_holds_names_and_versions_of_any_build() -> None:
    names = ["torch", "trtllm-coexist", "nvidia-cublas", "nvidia-ml-py", "triton", "Jinja2", "typing_extensions"]
    report = {"install": [{"metadata": {"name": name, "version": "2.0+cpu"}} for name in names]}
    assert lock.lines(report) == ["jinja2==2.0", "nvidia-ml-py==2.0", "torch==2.0", "typing-extensions==2.0"]


def test_committed_locks_name_no_place_and_no_build() -> None:
    files = sorted(REQUIREMENTS.glob("lock-py*.txt"))
    assert [file.stem for file in files] == ["lock-py310", "lock-py311", "lock-py312", "lock-py313"]
    for file in files:
        pins = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        assert all(pin.count("==") == 1 and not set(pin) & set("/:@+ ") for pin in pins)
