from __future__ import annotations

from pathlib import Path

import pytest

from tests.build.trtllm_bench import TrtllmBench
from toolkit.build.trtllm_versions import build_release, installed, known_releases, last_release, versions
from toolkit.errors import ToolkitError


@pytest.mark.parametrize("version", ["1.3.0rc21", "1.3.0", "1.4.0", "2.0"])
def test_a_release_without_engines_says_what_to_do_instead(version: str) -> None:
    with pytest.raises(ToolkitError, match="builds no engines") as caught:
        build_release(version)
    assert caught.value.code == "no_engine_mode"
    assert "model: PATH" in str(caught.value.hint)
    assert last_release() in str(caught.value.hint)


def test_a_release_older_than_any_that_was_read_is_unknown() -> None:
    with pytest.raises(ToolkitError, match="nothing is known") as caught:
        build_release("0.7.1")
    assert "0.8.0 up to" in str(caught.value.hint)


def test_words_that_are_no_version_are_refused() -> None:
    with pytest.raises(ToolkitError, match="'nightly' is no version"):
        build_release("nightly")


def test_a_local_version_is_that_of_its_release() -> None:
    assert build_release("1.2.0+ngcpytorch").table.options == build_release("1.2.0").table.options


def test_the_environment_is_read_without_running_its_interpreter(trtllm: TrtllmBench) -> None:
    trtllm.python.write_text("#!/bin/false\n")
    found = installed(trtllm.python, trtllm.environ)
    assert (found.version, found.tensorrt) == ("0.21.0", "10.9.0.34")


def test_an_interpreter_that_is_a_script_has_what_lies_beside_it(trtllm: TrtllmBench) -> None:
    (trtllm.folder / "env" / "pyvenv.cfg").unlink()
    assert versions(trtllm.python, {}).trtllm == "0.21.0"


def test_an_environment_without_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="no TensorRT-LLM") as caught:
        installed(tmp_path / "bin" / "python", {})
    assert "--trtllm-version" in str(caught.value.hint)


def test_releases_that_were_read_are_in_order() -> None:
    assert known_releases()[0] == "0.8.0"
    assert len(known_releases()) == len(set(known_releases()))
