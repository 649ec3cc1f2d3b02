from __future__ import annotations

import re
from typing import get_args

import generate_runtimes
import pytest

from toolkit import runtimes
from toolkit.config.models import RuntimeName

PAGE = generate_runtimes.PAGE.read_text(encoding="utf-8")
# As a person reads it.
PLAIN = PAGE.replace("`", "").replace("\\|", "|")


def test_the_table_of_programs_is_current(capsys):
    assert generate_runtimes.main(["--check"]) == 0, capsys.readouterr().out


def test_every_program_that_a_deployment_may_name_is_in_it():
    assert set(runtimes.names()) == set(get_args(RuntimeName))


@pytest.mark.parametrize("name", runtimes.names())
def test_each_program_s_traits_and_traps_stand_on_the_page(name):
    traits = runtimes.get(name).traits
    (row,) = [line for line in PLAIN.splitlines() if line.startswith(f"| [{name}](#")]
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert cells[1:5] == [traits.readiness, traits.warmup, traits.memory_knob, traits.affinity]
    assert cells[5:] == ["yes" if each else "no" for each in (traits.can_drain, traits.answers_before_ready)]
    assert [trap for trap in traits.traps if trap not in PLAIN] == []


@pytest.mark.parametrize("name", runtimes.names())
def test_each_program_has_a_section_that_says_what_ran(name):
    (anchor,) = re.findall(rf"^\| \[{name}\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    sections = {
        re.sub(r"[^\w -]", "", text.splitlines()[0].lower()).replace(" ", "-"): text
        for text in PAGE.split("\n## ")[1:]
    }  # fmt: skip
    assert "**What ran here.**" in sections[anchor]


def test_a_table_that_is_not_current_is_told(tmp_path, monkeypatch, capsys):
    page = tmp_path / "runtimes.md"
    page.write_text(PAGE.replace("captures its CUDA graphs", "captures nothing"), encoding="utf-8")
    monkeypatch.setattr(generate_runtimes, "PAGE", page)
    assert generate_runtimes.main(["--check"]) == 1
    assert "run scripts/generate_runtimes.py" in capsys.readouterr().out
    assert generate_runtimes.main([]) == 0
    assert page.read_text(encoding="utf-8") == PAGE
