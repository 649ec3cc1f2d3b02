from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

UNDEFINED = "ImportError: /home/jane/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs\n"
KEYS = {"schema", "class", "verdict", "culprit", "root_line", "line", "summary", "advice", "also", "rule"}


def log_file(tmp_path: Path, text: str = UNDEFINED) -> Path:
    path = tmp_path / "server.log"
    path.write_text(text)
    return path


def service_log(tmp_path: Path, deployment: str, service: str, text: str) -> Path:
    path = tmp_path / "home" / "state" / deployment / "logs" / f"{service}.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_the_document_has_every_promised_key(coexist, tmp_path):
    answer = coexist("diagnose", log_file(tmp_path), "--json")
    assert answer.code == 0
    assert set(answer.document) == KEYS
    assert (answer.document["class"], answer.document["root_line"]) == ("abi_mismatch", 1)


def test_any_readable_log_exits_0_an_unreadable_one_1(coexist, tmp_path):
    assert coexist("diagnose", log_file(tmp_path, ""), "--json").document["class"] == "unknown"
    assert coexist("diagnose", tmp_path).code == 1
    assert "no service" in coexist("diagnose", "nope").err


def test_standard_input_is_read(coexist, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(UNDEFINED.encode())))
    assert coexist("diagnose", "-", "--json").document["culprit"] == "flash_attn_2_cuda.so"


def test_a_service_is_found_by_its_name_and_a_wrong_name_gets_the_nearest(coexist, tmp_path):
    service_log(tmp_path, "rag", "llm", "OSError: [Errno 98] Address already in use\n")
    assert coexist("diagnose", "llm", "--json").document["class"] == "port_in_use"
    wrong = coexist("diagnose", "lmm", "--json")
    assert (wrong.code, wrong.error["hint"]) == (1, "Did you mean 'llm'?")
    assert coexist("diagnose", "llm", "--deployment", "other").code == 1


def test_the_exit_code_and_an_oom_kill_count(coexist, tmp_path):
    log = log_file(tmp_path, "INFO: loading\n")
    assert coexist("diagnose", log, "--exit-code", "137", "--oom-killed", "--json").document["class"] == "host_oom"
    assert coexist("diagnose", log, "--exit-code", "137", "--not-oom-killed", "--json").document["class"] == "unknown"


def test_a_person_reads_who_is_guilty_and_what_to_do(coexist, tmp_path):
    text = coexist("diagnose", log_file(tmp_path)).out
    assert text.startswith("abi_mismatch (stop) in line 1")
    assert "flash_attn_2_cuda.so" in text
    assert "c10::Error::Error" in text


def test_the_bundle_holds_everything_but_secrets(coexist, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"services": [], "ledger": [], "env": {"HF_TOKEN": "hf_" + "a" * 20}}))
    target = tmp_path / "r.tar.gz"
    answer = coexist("diagnose", log_file(tmp_path), "--plan", plan, "--bundle", target, "--json")
    assert answer.code == 0
    with tarfile.open(target) as archive:
        texts = {Path(member.name).name: archive.extractfile(member).read().decode() for member in archive}
    assert {"log.txt", "diagnosis.json", "plan.json", "versions.json"} <= set(texts)
    assert not any("jane" in text or "hf_aaaa" in text for text in texts.values())
    assert json.loads(texts["versions.json"])["packages"]["click"]


def test_of_a_service_that_was_tried_again_the_last_attempt_is_looked_at(coexist, tmp_path):
    first = "starting\nOSError: [Errno 98] Address already in use\n"
    log = service_log(tmp_path, "rag", "llm", first + "starting\n" + UNDEFINED)
    started = {"kind": "spawned", "service": "llm"}
    events = [{**started, "log_start_bytes": 0}, {**started, "log_start_bytes": len(first)}]
    (log.parents[1] / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    found = coexist("diagnose", "llm", "--json").document
    assert (found["class"], found["root_line"]) == ("abi_mismatch", 4)
    assert coexist("diagnose", "llm", "-f", "--json").document["root_line"] == 4
    assert coexist("diagnose", log, "--json").document["class"] == "port_in_use"  # a file is read as it is
    log.write_text("OSError: [Errno 98] Address already in use\n")  # rotated since: all that is there
    assert coexist("diagnose", "llm", "--json").document["class"] == "port_in_use"


FAILURE = {"class": "exit", "verdict": "stop", "summary": "exited with status 1", "culprit": "nosuchmod",
           "line": "No module named 'nosuchmod'", "advice": "Install it.", "attempt": 2}  # fmt: skip


def left_behind(tmp_path: Path, log: str, **service: object) -> None:
    told = {"name": "llm", "attempt": 2, "last_failure": None, **service}
    path = service_log(tmp_path, "rag", "llm", log)
    (path.parents[1] / "status.json").write_text(json.dumps({"schema": 1, "services": [told]}))


def test_where_the_log_alone_says_nothing_the_supervisor_is_believed(coexist, tmp_path):
    left_behind(tmp_path, "one line\n", state="FAILED", last_failure=FAILURE)
    found = coexist("diagnose", "llm", "--json").document
    assert (found["class"], found["culprit"], found["advice"]) == ("exit", "nosuchmod", "Install it.")
    assert coexist("diagnose", "llm", "--exit-code", "137", "--json").document["class"] == "host_oom"


def test_a_log_that_says_why_goes_before_what_the_supervisor_said(coexist, tmp_path):
    left_behind(tmp_path, UNDEFINED, state="FAILED", last_failure=FAILURE)
    assert coexist("diagnose", "llm", "--json").document["class"] == "abi_mismatch"


def test_a_service_that_was_stopped_on_request_did_not_fail(coexist, tmp_path):
    left_behind(tmp_path, "one line\n", state="STOPPED", last_failure={**FAILURE, "attempt": 1})
    found = coexist("diagnose", "llm", "--json").document
    assert (found["class"], found["verdict"]) == ("stopped", "none")


def test_a_stopped_service_whose_log_ends_well_is_not_waited_for(coexist, tmp_path):
    log = "2026-11-30 02:28:12,388 INFO listening on 127.0.0.1:8001\n"
    left_behind(tmp_path, log, state="PRELOAD")
    assert coexist("diagnose", "llm", "--json").document["class"] == "healthy"
    status = tmp_path / "home" / "state" / "rag" / "status.json"
    status.write_text(status.read_text().replace("PRELOAD", "STOPPED"))
    found = coexist("diagnose", "llm", "--json").document
    assert (found["class"], found["verdict"]) == ("stopped", "none")


def test_a_service_that_is_starting_is_waited_for_unless_its_supervisor_is_gone(coexist, tmp_path, monkeypatch):
    left_behind(tmp_path, "", state="PRELOAD")
    assert coexist("diagnose", "llm", "--json").document["verdict"] == "stop"
    monkeypatch.setattr("toolkit.cli.diagnose._is_alive", lambda state: True)
    found = coexist("diagnose", "llm", "--json").document
    assert (found["class"], found["verdict"]) == ("healthy", "wait")
