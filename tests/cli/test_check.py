from __future__ import annotations

import sys

import pytest

from toolkit.compat import book

KEYS = {"schema", "verdict", "host", "environments", "pairs", "findings"}
QUESTION = "tensorrt-llm=0.12.0,flash-attn=2.6.3,torch=2.4.0,cuda=12.5,python=3.10"


def test_versions_are_judged_without_being_installed(coexist):
    answer = coexist("check", "--versions", QUESTION, "--gpu", "sm_90", "--json")
    assert answer.code == 0
    assert set(answer.document) == KEYS
    assert answer.document["schema"] == 1
    assert answer.document["verdict"] == "runnable"
    assert answer.document["pairs"][0]["closest"] == "same-env"


@pytest.mark.parametrize(
    ("versions", "gpu", "verdict", "code"),
    [
        ("tensorrt-llm=1.1.0,flash-attn=2.8.3,torch=2.9.0", "sm_90", "compatible", 0),
        ("tensorrt-llm=0.12.0,torch=2.5.0", "sm_90", "incompatible", 1),
        ("flash-attn=2.6.3", "7.5", "incompatible", 1),
        ("tensorrt-llm=0.18.0,torch=2.6.0", "sm_90", "unknown", 0),
    ],
)
def test_the_exit_code_follows_the_verdict(coexist, versions, gpu, verdict, code):
    answer = coexist("check", "--versions", versions, "--gpu", gpu, "--json")
    assert (answer.document["verdict"], answer.code) == (verdict, code)
    assert ("warning" in answer.err) == (verdict == "unknown")


def test_the_answer_for_a_person_names_the_finding_its_fix_and_the_verdict(coexist):
    answer = coexist("check", "--versions", "tensorrt-llm=0.12.0,torch=2.5.0", "--gpu", "sm_90")
    assert "trtllm-torch" in answer.out
    assert "fix:" in answer.out
    assert "verdict: incompatible" in answer.out


def test_no_line_of_a_finding_is_cropped(coexist):
    answer = coexist("check", "--versions", QUESTION, "--gpu", "sm_90")
    whole = coexist("check", "--versions", QUESTION, "--gpu", "sm_90", "--json").document["findings"]
    assert max(len(finding["why"]) for finding in whole) > 120
    for finding in whole:
        assert {finding["why"], *finding["evidence"]} <= {line.strip() for line in answer.out.splitlines()}


def test_a_package_named_twice_is_refused(coexist):
    answer = coexist("check", "--versions", "torch=2.4.0,torch=2.5.0", "--json")
    assert (answer.code, answer.document["error"]["what"]) == (1, "torch is named twice")


def test_an_environment_is_checked_by_its_python(coexist):
    answer = coexist("check", "--env", f"me={sys.executable}", "--json")
    assert answer.code == 0
    assert answer.document["environments"]["me"]["packages"]["torch"]


def test_two_environments_are_a_pair(coexist):
    answer = coexist("check", "--env", f"a={sys.executable}", "--env", f"b={sys.executable}", "--json")
    assert [(pair["a"], pair["b"]) for pair in answer.document["pairs"]] == [("a", "b")]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--env", "me"), "NAME=PYTHON"),
        (("--env", "me=/no/such/python"), "does not exist"),
        (("--env", f"me={sys.executable}", "--env", f"me={sys.executable}"), "twice"),
        (("--versions", "tensorrt-llm"), "PACKAGE=VERSION"),
        (("--versions", "tensort-llm=0.12.0"), "tensorrt-llm"),
        (("--versions", "torch=2.4.0", "--gpu", "hopper"), "sm_90"),
        (("--explain", "abi-torch-mismatsch"), "abi-torch-mismatch"),
        (("none.yaml",), "none.yaml"),
    ],
)
def test_what_a_person_mistypes_is_an_error_with_the_next_step(coexist, argv, words):
    answer = coexist("check", *argv, "--json")
    assert answer.code == 1
    error = answer.error
    assert words in f"{error['what']} {error['where']} {error['hint']} {error.get('faults')}"


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--gpu", "sm_90", "--matrix"),
        ("--matrix", "--smoke"),
        ("a.yaml", "--versions", "torch=2.4.0"),
        ("--smoke", "--host", "host.json"),
        ("--versions", "torch=2.4.0", "--gpu", "sm_90", "--host", "host.json"),
    ],
)
def test_no_question_or_two_is_wrong_usage(coexist, argv):
    assert coexist("check", *argv, "--json").code == 2


def test_every_finding_can_be_explained(coexist):
    for rule in book.rules():
        answer = coexist("check", "--explain", rule, "--json")
        assert answer.code == 0
        assert {"id", "severity", "what", "why", "fix", "source"} <= set(answer.document)


def test_an_explanation_for_a_person(coexist):
    answer = coexist("check", "--explain", "stale-jit-lock")
    assert "stale-jit-lock" in answer.out
    assert "flashinfer" in answer.out


def test_the_matrix_has_every_pair_with_its_source(coexist):
    document = coexist("check", "--matrix", "--json").document
    assert document["schema"] == 1
    assert all(pair["source"] for pair in document["pairs"])
    assert coexist("check", "--matrix").code == 0


def test_the_smoke_test_answers_on_a_machine_without_gpus(coexist, monkeypatch):
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    answer = coexist("check", "--smoke", "--json")
    assert {"ok", "gpus", "summary", "probes"} <= set(answer.document)
    assert answer.code == (0 if answer.document["ok"] else 1)


def test_a_deployment_is_checked(coexist, tmp_path):
    file = tmp_path / "deploy.yaml"
    file.write_text(
        "version: 1\nname: x\nservices:\n  a: {runtime: command, argv: [sleep, '1'], port: 18999, ready: {log: ok}}\n"
    )
    answer = coexist("check", file, "--json")
    assert answer.code == 0
    assert answer.document["verdict"] == "runnable"


def test_with_a_recorded_host_a_deployment_elsewhere_is_unknown_not_guessed(coexist, tmp_path):
    coexist("host", "--record", tmp_path / "host.json")
    file = tmp_path / "deploy.yaml"
    file.write_text("version: 1\nname: x\nservices:\n  a: {runtime: command, argv: [sleep, '1'], ready: {log: ok}}\n")
    answer = coexist("check", file, "--host", tmp_path / "host.json", "--json")
    assert (answer.code, answer.document["verdict"]) == (0, "unknown")
