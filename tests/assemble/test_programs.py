from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.assemble.programs import check_programs
from toolkit.config import load
from toolkit.errors import ManyFaultsError
from toolkit.runtimes.base import Launch, Probes

PROBES = Probes(loaded=None)


@pytest.fixture
def check(tmp_path: Path):
    file = tmp_path / "deploy.yaml"
    file.write_text("version: 1\nname: demo\nservices:\n  web: {runtime: command, argv: [serve], ready: {path: /}}\n")
    tool = tmp_path / "bin" / "serve"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    def run(program: str, cwd: Path | None = None) -> None:
        launch = Launch((program.format(tmp_path),), {"PATH": str(tool.parent)}, PROBES, cwd)
        check_programs(load.deployment(file), {"web": launch})

    return run


@pytest.mark.parametrize("program", ["serve", "{}/bin/serve"])
def test_a_program_that_is_there_is_passed(check, program):
    check(program)


def test_a_relative_program_is_looked_for_in_the_service_s_own_folder(check, tmp_path):
    check("bin/serve", tmp_path)
    with pytest.raises(ManyFaultsError):
        check("bin/serve", tmp_path / "bin")


def test_a_missing_program_is_told_with_its_place_and_where_it_was_looked_for(check, tmp_path):
    with pytest.raises(ManyFaultsError) as caught:
        check("srve")
    (fault,) = caught.value.errors
    assert fault.what == "there is no program 'srve'"
    assert fault.where.endswith("deploy.yaml:4 services.web.argv")
    assert str(tmp_path / "bin") in fault.hint


def test_a_file_that_may_not_be_executed_is_no_program(check, tmp_path):
    (tmp_path / "bin" / "serve").chmod(0o644)
    with pytest.raises(ManyFaultsError, match="no program"):
        check("{}/bin/serve")
