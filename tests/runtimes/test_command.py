from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtimes.conftest import CPUS, context, service
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import HttpProbe, LogProbe
from toolkit.runtimes.command import CommandRuntime, fill

CANARY = {"method": "POST", "path": "/answer", "body": {"q": 1}, "contains": "42"}
JSON = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))


def command(**keys: Any):
    return service(**{"runtime": "command", "argv": ["server", "--port", "{port}"], "canary": CANARY, **keys})


def launch(made, **changes: Any):
    return CommandRuntime().launch(context(made, "any", **changes), CPUS)


def check(made) -> ToolkitError:
    with pytest.raises(ToolkitError) as caught:
        CommandRuntime().check("any", made)
    return caught.value


def test_placeholders_are_filled_in():
    argv = ["{python}", "-m", "s", "--at={host}:{port}", "{model}", "{cpus}"]
    made = launch(command(argv=argv, model="m"), model_dir=Path("/models/m"))
    assert made.argv == ("/opt/env/bin/python", "-m", "s", "--at=127.0.0.1:8001", "/models/m", "0-1,32-33")


@given(JSON)
def test_json_in_an_argument_is_left_alone(document: object):
    text = json.dumps(document, ensure_ascii=True)
    assert fill(text.replace("{", "{ "), {"port": "1"}) == text.replace("{", "{ ")


def test_doubled_braces_stand_for_the_word_itself():
    assert fill('{"port": {port}, "a": {"b": 1}} {{port}}', {"port": "1"}) == '{"port": 1, "a": {"b": 1}} {port}'


def test_an_unknown_placeholder_names_the_nearest():
    error = check(command(argv=["server", "{prot}"]))
    assert (error.where, error.what) == ("services.any.argv", "unknown placeholder '{prot}'")
    assert error.hint == "Did you mean 'port'? Write {{prot}} for the literal text."
    CommandRuntime().check("any", command(argv=["server", "{{prot}}"]))


def test_a_model_placeholder_needs_a_model():
    assert check(command(argv=["server", "{model}"])).code == "no_model"
    CommandRuntime().check("any", command(argv=["server", "{model}"], model="m"))


def test_its_canary_is_its_request():
    probes = launch(command()).probes
    expected = HttpProbe("/answer", "POST", {"q": 1}, expect_text="42")
    assert probes.canary is not None
    assert probes.generation is not None
    assert (probes.canary.request, probes.generation.request, probes.loaded) == (expected, expected, expected)
    assert (probes.drain, probes.register, probes.stage, probes.live) == (None, None, None, None)


def test_a_ready_path_stands_in_for_a_missing_canary_and_that_is_said():
    made = launch(command(canary=None, ready={"path": "/health"}))
    assert made.probes.loaded == made.probes.live == HttpProbe("/health")
    assert made.probes.canary is not None
    assert made.probes.canary.request == HttpProbe("/health")
    assert any("only asks whether GET /health answers 200" in note for note in made.notes)


def test_a_canary_that_does_not_look_at_the_answer_is_said_to_be_one():
    weak = launch(command(canary={"path": "/answer"})).notes
    assert any("only looks at the status" in note for note in weak)
    assert not any("canary" in note for note in launch(command()).notes)


def test_a_log_line_can_say_that_it_is_up():
    assert launch(command(ready={"log": "listening on .*"})).probes.loaded == LogProbe("listening on .*")


def test_warmup_requests_are_run_in_order():
    made = launch(
        command(warmup_requests=[{"path": "/a"}, {"method": "POST", "path": "/b", "body": [1], "status": 201}])
    )
    assert made.probes.warmup == (HttpProbe("/a"), HttpProbe("/b", "POST", [1], expect_status=201))


@pytest.mark.parametrize(
    ("keys", "code", "where"),
    [
        ({"canary": None}, "no_canary", "services.any.canary"),
        ({"canary": None, "ready": {"log": "up"}}, "no_canary", "services.any.canary"),
        ({"canary": {"prompt": "hello"}}, "bad_canary", "services.any.canary"),
        ({"ready": {"log": "up", "path": "/up"}}, "bad_ready", "services.any.ready"),
        ({"options": {"x": 1}}, "unsupported", "services.any.options"),
        ({"env": {"COEXIST_TOKEN": "x"}}, "env_reserved", "services.any.env.COEXIST_TOKEN"),
    ],
)
def test_what_can_not_work_is_refused_where_it_was_asked(keys: dict[str, Any], code: str, where: str):
    CommandRuntime().check("any", command())
    error = check(command(**keys))
    assert (error.code, error.where) == (code, where)


@pytest.mark.parametrize(("window", "expected_s"), [({}, 900.0), ({"preload_window": "5s"}, 5.0)])
def test_other_programs_have_longer_to_load(window: dict[str, str], expected_s: float):
    assert launch(command(**window)).preload_window_s == expected_s


def test_a_folder_for_the_logs_of_ranks_is_there_for_those_who_use_it():
    used = launch(command(argv=["mpirun", "--output-filename", "{logs}", "serve"]), log_dir=Path("/state/logs/any"))
    assert (used.argv[2], used.rank_logs) == ("/state/logs/any", True)
    assert launch(command()).rank_logs is False
