from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"
STUBS = {
    "scripts/setup.sh": "echo setting up $* >&2",
    ".venv/bin/python": "echo noise of $*",
    ".venv/bin/coexist": "echo coexist $*; exit ${COEXIST_EXIT:-0}",
}


def quickstart(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(MAKEFILE, folder)
    for name, line in STUBS.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        file.chmod(0o755)
    argv = ["make", "quickstart", *arguments]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **env}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_standard_output_of_quickstart_is_coexists_alone(tmp_path: Path) -> None:
    done = quickstart(tmp_path, "ARGS=--exit-when-ready --json")
    assert done.stdout == "coexist up configs/quickstart.yaml --exit-when-ready --json\n"
    assert done.stderr == "setting up run\nnoise of scripts/fetch_models.py\n"
    assert done.returncode == 0


def test_a_failed_deployment_fails_make(tmp_path: Path) -> None:
    done = quickstart(tmp_path, COEXIST_EXIT="4")
    assert done.returncode == 2
    assert "Error 4" in done.stderr


def test_a_deployment_ended_by_ctrl_c_is_no_error_of_make(tmp_path: Path) -> None:
    done = quickstart(tmp_path, COEXIST_EXIT="130")
    assert done.returncode == 0
    assert "Error" not in done.stderr
