from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

RECORDS = Path(__file__).resolve().parents[1] / "host" / "records"
SERVER = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]


@pytest.fixture
def deployment(tmp_path):
    """Writes a deployment of 'command' services; keyword arguments change the one named 'web'."""

    def write(services: dict | None = None, **web) -> Path:
        base = {"runtime": "command", "argv": SERVER, "ready": {"path": "/"}, "port": free_port(), **web}
        file = tmp_path / "deploy.yaml"
        file.write_text(json.dumps({"version": 1, "name": "demo", "services": services or {"web": base}}))
        return file

    return write


def test_a_plan_has_every_promised_key(coexist, deployment):
    document = coexist("plan", deployment(), "--json").document
    assert set(document) == {"schema", "deployment", "services", "ledger", "notes"}
    assert set(document["services"][0]) >= {
        "name", "runtime", "gpus", "cpus", "numa_nodes", "memory_bind", "port", "wave", "after", "argv", "env", "notes",
    }  # fmt: skip


def test_a_plan_for_a_recorded_host_consults_nothing_of_this_machine(coexist, deployment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = deployment(port=taken.getsockname()[1], cpus=100)
        planned = coexist("plan", file, "--host", RECORDS / "dgx_h100.json", "--json")
    assert planned.code == 0
    assert planned.document["services"][0]["cpus"]


def test_more_cores_than_allowed_is_refused_with_numbers(coexist, deployment):
    answer = coexist("plan", deployment(cpus=4096), "--json")
    assert answer.code == 1
    assert answer.error["resource"] == "cpus"
    assert "deploy.yaml:1 services.web.cpus" in answer.error["where"]
    assert answer.error["needed"] - answer.error["available"] > 0
    assert answer.error["services"] == ["web"]


def test_a_port_in_use_is_told_with_its_owner(coexist, deployment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = coexist("up", deployment(port=taken.getsockname()[1]), "--exit-when-ready", "--json")
    assert answer.code == 1
    assert answer.error["resource"] == "port"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("version: 1\n  name: x", "deploy.yaml:"),
        ("version: 1\nname: a\nservces: {}\n", "services"),
    ],
)
def test_a_broken_file_is_one_clear_error(coexist, tmp_path, text, told):
    file = tmp_path / "deploy.yaml"
    file.write_text(text)
    answer = coexist("up", file)
    assert answer.code == 1
    assert told in answer.err


def test_a_deployment_without_engines_has_nothing_to_build_and_says_so(coexist, deployment):
    answer = coexist("build", deployment())
    assert (answer.code, answer.out) == (0, "")
    assert "nothing to build" in answer.err


def test_a_missing_file_is_said(coexist, tmp_path):
    answer = coexist("up", tmp_path / "none.yaml", "--json")
    assert answer.code == 1
    assert "none.yaml" in answer.error["where"]


def test_a_missing_model_folder_is_said_with_file_line_and_where_it_was_looked_for(coexist, deployment):
    file = deployment(services={"embed": {"runtime": "flash", "model": "models/none"}})
    answer = coexist("up", file, "--json")
    assert answer.code == 1
    assert "services.embed.model" in answer.error["where"]
    assert "Looked for" in answer.error["hint"]


def test_detach_and_exit_when_ready_exclude_each_other(coexist, deployment):
    assert coexist("up", deployment(), "--detach", "--exit-when-ready").code == 2


def test_up_exits_when_ready_with_the_status_of_that_moment(coexist, deployment):
    answer = coexist("up", deployment(), "--exit-when-ready", "--json")
    assert answer.code == 0
    assert answer.document["ready"] is True
    (service,) = answer.document["services"]
    assert service["state"] == "SERVING"
    assert service["canary"]["ok"] is True


def test_not_ready_in_time_is_exit_code_4_with_what_is_missing(coexist, deployment):
    silent = deployment(argv=[sys.executable, "-c", "import time; time.sleep(60)"])
    answer = coexist("up", silent, "--exit-when-ready", "--timeout", "3s", "--json")
    assert answer.code == 4
    assert "web" in answer.error["what"]


def test_up_prints_timeline_and_first_tokens_for_people(coexist, deployment):
    answer = coexist("up", deployment(), "--exit-when-ready")
    assert answer.code == 0
    assert "first request" in answer.out
    assert "PRELOAD" in answer.out


def test_a_failed_start_tells_the_diagnosis_not_the_log(coexist, deployment):
    line = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    code = f"import sys; print('Traceback (most recent call last):'); print({line!r}); sys.exit(1)"
    answer = coexist("up", deployment(argv=[sys.executable, "-c", code]), "--exit-when-ready", "--json")
    assert answer.code == 1
    assert answer.error["code"] == "missing_shared_library"
    assert "libcudart.so.12" in answer.error["what"]
    assert answer.error["hint"]


def test_a_person_is_told_class_culprit_line_cause_and_fix_of_a_failed_start(coexist, deployment):
    line = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    code = f"import sys; print('loading'); print({line!r}); print('Aborted'); sys.exit(1)"
    told = coexist("up", deployment(argv=[sys.executable, "-c", code]), "--exit-when-ready").err
    assert "'web' failed: libcudart.so.12 is needed" in told
    assert "  class: missing_shared_library (stop)\n  guilty: libcudart.so.12\n" in told
    assert f"  line: {line}\n  hint: " in told
    assert "Aborted" not in told


def test_a_missing_program_is_told_before_anything_starts(coexist, deployment):
    answer = coexist("up", deployment(argv=["nosuchprogram"]), "--json")
    assert answer.code == 1
    assert answer.error["code"] == "no_program"
    assert "services.web.argv" in answer.error["where"]
    assert answer.err == ""


def test_a_plan_says_that_up_would_miss_the_program(coexist, deployment):
    (service,) = coexist("plan", deployment(argv=["nosuchprogram"]), "--json").document["services"]
    (note,) = [note for note in service["notes"] if "nosuchprogram" in note]
    assert note.startswith("it can't be started yet: there is no program 'nosuchprogram'. Install it; looked for in /")
    (service,) = coexist("plan", deployment(), "--json").document["services"]
    assert not [note for note in service["notes"] if "can't be started" in note]


def test_a_port_that_is_left_out_is_picked_and_told_to_the_program(coexist, deployment):
    (service,) = coexist("plan", deployment(port=None), "--json").document["services"]
    assert service["port"] > 8000
    assert str(service["port"]) in service["argv"]


def test_a_program_that_cannot_learn_its_port_is_pointed_out(coexist, deployment):
    (service,) = coexist("plan", deployment(argv=["server", "8105"], port=None), "--json").document["services"]
    assert any("{port}" in note for note in service["notes"])
    (service,) = coexist("plan", deployment(), "--json").document["services"]
    assert not any("{port}" in note for note in service["notes"])
