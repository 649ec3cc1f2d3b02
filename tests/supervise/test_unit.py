"""The unit in the documentation is one that systemd takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs" / "supervision.md"


def unit() -> str:
    text = DOCS.read_text(encoding="utf-8")
    return text.partition("```ini\n")[2].partition("```")[0]


def setting(section: str, name: str) -> str:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit())
    return parser[section][name]


def test_what_supervision_needs_of_a_unit_is_in_it() -> None:
    wanted = {"Type": "notify", "KillMode": "mixed", "Delegate": "yes", "OOMPolicy": "continue", "NotifyAccess": "main"}
    assert {name: setting("Service", name) for name in wanted} == wanted
    assert int(setting("Service", "WatchdogSec")) > 0
    assert setting("Service", "ExecStart") == setting("Service", "ExecReload")


def test_every_setting_of_the_service_that_is_not_obvious_has_a_reason() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in ("TimeoutStartSec", "TimeoutStopSec", "WatchdogSec", "KillMode", "Delegate", "OOMPolicy"):
        assert f"| `{name}" in text


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_finds_no_fault_with_it(tmp_path: Path) -> None:
    file = tmp_path / "coexist-rag-node.service"
    file.write_text(unit().replace("/opt/coexist/bin/coexist", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    told = [line for line in (done.stdout + done.stderr).splitlines() if "coexist-rag-node" in line]
    assert (done.returncode, told) == (0, [])
