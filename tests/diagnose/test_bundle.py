from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pytest

from toolkit.diagnose import bundle
from toolkit.errors import ToolkitError


def test_the_archive_holds_log_and_documents_without_secrets(tmp_path: Path) -> None:
    target = tmp_path / "report.tar.gz"
    files = bundle.write(target, b"HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaa\nboom\n", {"plan": {"password": "x"}, "host": None})
    assert files == ["log.txt", "plan.json"]
    with tarfile.open(target) as archive:
        texts = {member.name: archive.extractfile(member).read().decode() for member in archive}
    assert "hf_aaaa" not in texts["coexist-report/log.txt"]
    assert "boom" in texts["coexist-report/log.txt"]
    assert json.loads(texts["coexist-report/plan.json"]) == {"password": "[removed]"}
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_of_a_very_long_log_the_middle_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_LOG_BYTES", 1000)
    bundle.write(tmp_path / "r.tar.gz", b"first\n" + b"x\n" * 5000 + b"last\n", {})
    with tarfile.open(tmp_path / "r.tar.gz") as archive:
        text = archive.extractfile("coexist-report/log.txt").read().decode()
    assert text.startswith("first")
    assert text.endswith("last\n")
    assert "bytes left out here" in text


def test_a_place_that_cannot_be_written_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError) as caught:
        bundle.write(tmp_path / "none" / "r.tar.gz", b"", {})
    assert "none" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
