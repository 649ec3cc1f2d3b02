"""Every recorded text and every placement case through the command line, as a person gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.placement_cases import translate
from tests.plan.properties import broken

TESTS = Path(__file__).resolve().parents[1]
TEXTS = sorted((TESTS / "host" / "topology").glob("*.txt"))
CASES = sorted((TESTS / "placement").glob("*.yaml"))
FOR_PEOPLE = ("note", "planner", "query")


def facts_of(text: Path) -> dict:
    return json.loads(text.with_suffix(".json").read_text())


@pytest.mark.parametrize("text", [t for t in TEXTS if facts_of(t)["kind"] != "other"], ids=lambda path: path.stem)
def test_a_recorded_text_gives_its_document(coexist, text):
    answer = coexist("host", "parse", text, "--json")
    wanted = {key: value for key, value in facts_of(text).items() if key not in FOR_PEOPLE}
    assert answer.code == 0
    assert {key: value for key, value in answer.document.items() if key not in (*FOR_PEOPLE, "schema")} == wanted


@pytest.mark.parametrize("text", [t for t in TEXTS if facts_of(t)["kind"] == "other"], ids=lambda path: path.stem)
def test_a_text_of_another_kind_is_refused_with_what_it_is(coexist, text):
    answer = coexist("host", "parse", text, "--json")
    assert (answer.code, bool(answer.error["what"]), bool(answer.error["saw"])) == (1, True, True)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_plan_of_a_case_has_all_its_properties(coexist, tmp_path, path):
    case = yaml.safe_load(path.read_text())
    record, deployment = translate(case)
    host, config = tmp_path / "host.json", tmp_path / "deploy.yaml"
    host.write_text(json.dumps(record))
    config.write_text(yaml.safe_dump(deployment))
    answer = coexist("plan", config, "--host", host, "--json")
    assert answer.code == (0 if case["expected"]["verdict"] == "ok" else 1)
    assert broken(case, answer.document) == []


def test_both_kinds_of_answer_are_among_the_cases():
    verdicts = {yaml.safe_load(path.read_text())["expected"]["verdict"] for path in CASES}
    assert verdicts == {"ok", "refuse"}
