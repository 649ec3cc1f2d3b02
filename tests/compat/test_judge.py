from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compat.builders import FACTS, case, findings, gpu, host, service, view
from tests.compat.test_rules import CASES
from toolkit.compat import book, cases, judge
from toolkit.compat.model import Finding
from toolkit.facts import image_versions
from toolkit.facts.images import triton

FINDINGS = st.builds(
    Finding,
    id=st.just("x"),
    severity=st.sampled_from(judge.SEVERITIES),
    subject=st.just("s"),
    environment=st.none(),
    what=st.just("w"),
    why=st.just("y"),
    fix=st.just("f"),
    evidence=st.just(()),
    source=st.just("z"),
    effect=st.sampled_from(("none", "step", "unknown", "blocks")),
)


@given(st.lists(FINDINGS, max_size=6), FINDINGS)
def test_a_further_finding_never_improves_the_verdict(found: list[Finding], more: Finding) -> None:
    before, after = judge.verdict(found), judge.verdict([*found, more])
    assert judge.VERDICTS.index(after) >= judge.VERDICTS.index(before)


@given(st.lists(FINDINGS, max_size=6), FINDINGS)
def test_what_blocks_makes_it_incompatible_whatever_else_there_is(found: list[Finding], more: Finding) -> None:
    assert judge.verdict([*found, replace(more, effect="blocks")]) == "incompatible"


def test_nothing_found_is_runnable() -> None:
    assert judge.verdict([]) == "runnable"


@given(st.sampled_from(sorted(CASES)), st.sampled_from(sorted(CASES)))
def test_errors_block_and_notes_do_not(one: str, other: str) -> None:
    found = [*judge.find(CASES[one][0]()), *judge.find(CASES[other][0]())]
    for each in found:
        assert (each.effect == "blocks") == (each.severity == "error")
        assert each.severity != "note" or each.effect == "none"


def test_the_document_has_every_promised_key() -> None:
    packages = {"tensorrt-llm": "0.12.0", "flash-attn": "2.6.3", "torch": "2.4.0"}
    document = judge.judge(case(view(packages=packages))).document()
    assert set(document) == {"verdict", "host", "environments", "pairs", "findings"}
    assert set(document["environments"]["trtllm"]) == {
        "executable", "python", "packages", "torch_cuda", "torch_cxx11_abi",
    }  # fmt: skip
    assert set(document["pairs"][0]) == {"a", "b", "closest", "needs", "why", "source"}
    assert set(document["findings"][0]) == {
        "id", "severity", "subject", "environment", "what", "why", "fix", "evidence", "source",
    }  # fmt: skip
    assert document["environments"]["trtllm"]["torch_cxx11_abi"] is False
    assert document["environments"]["trtllm"]["packages"]["vllm"] is None
    json.dumps(document)


def test_errors_come_first() -> None:
    found = judge.find(CASES["flash-attn-breaks-server"][0]())
    order = [judge.SEVERITIES.index(each.severity) for each in found]
    assert order == sorted(order)


def test_two_services_of_one_environment_are_that_close() -> None:
    services = {"a": service("vllm", model="m"), "b": service("vllm", model="m", port=8002)}
    (pair,) = judge.judge(case(view(packages={"torch": "2.4.0"}), services=services)).pairs
    assert (pair.a, pair.b, pair.closest) == ("a", "b", "same-env")


def environments_of_two(one: str, other: str, **changes: object) -> judge.Report:
    views = view("a", {"torch": one}), view("b", {"torch": other})
    return judge.judge(case(*views, on=host(gpu(**changes))))  # type: ignore[arg-type]


def test_two_torches_need_two_environments_and_may_share_a_gpu_with_budgets() -> None:
    (pair,) = environments_of_two("2.4.0", "2.7.0").pairs
    assert pair.closest == "same-gpu"
    assert set(pair.needs) == {"separate_environments", "memory_budgets"}


def test_exclusive_compute_mode_keeps_two_processes_off_one_gpu() -> None:
    (pair,) = environments_of_two("2.4.0", "2.7.0", compute_mode="Exclusive_Process").pairs
    assert pair.closest == "same-host"


def test_what_cannot_run_here_is_apart() -> None:
    views = view("a", {"torch": "2.4.0"}), view("b", {"tensorrt-llm": "0.12.0", "torch": "2.5.0"})
    (pair,) = judge.judge(case(*views)).pairs
    assert pair.closest == "apart"
    assert "accepts torch" in pair.why


@pytest.mark.parametrize("release", sorted(triton()))
def test_what_nvidia_publishes_in_one_image_is_no_mismatch(release: str) -> None:
    image = f"nvcr.io/nvidia/tritonserver:{release}-trtllm-python-py3"
    found = findings(case(cases.of_image("trtllm", image, "python3", image_versions(image))))
    assert not {each.id for each in found.values() if each.severity == "error" and each.id.startswith("trtllm-")}


@pytest.mark.parametrize(
    ("image", "torch", "refused"),
    [
        ("nvcr.io/x:1", "2.7.0a0+79aa17489c.nv25.4", False),
        ("nvcr.io/x:1", "2.6.0a0+ecf3bae40a.nv25.1", True),  # NVIDIA's, of another release
        ("nvcr.io/x:1", "2.7.0a0+git79aa174", True),  # a nightly
        (None, "2.7.0a0+79aa17489c.nv25.4", True),  # a wheel of the index beside it is of the other C++ ABI
    ],
)
def test_only_an_image_s_own_build_of_the_very_torch_stands_for_its_release(
    image: str | None, torch: str, refused: bool
) -> None:
    found = findings(case(view(packages={"tensorrt-llm": "0.20.0", "torch": torch}, image=image)))
    assert ("trtllm-torch" in found) is refused


def test_on_a_mixed_host_a_gpu_that_does_not_fit_is_a_warning_while_others_do() -> None:
    found = findings(case(view("f", {"flash-attn": "2.6.3"}), on=host(gpu(), gpu(1, sm="7.5"))))
    assert found["flash-attention-architecture"].severity == "warning"


def test_an_engine_for_another_gpu_of_this_host_is_cured_by_assignment_not_by_a_build() -> None:
    trigger = CASES["engine-compute-capability"][0]()
    other = gpu(1, sm="8.9", name="NVIDIA L40S")
    here = replace(trigger, host=host(*(trigger.host.gpus if trigger.host else ()), other))
    assert "GPU 1" in findings(here)["engine-compute-capability"].fix


@pytest.mark.parametrize(
    ("runtime", "attention", "told"),
    [("flash", "sdpa", False), ("flash", "auto", False), ("flash", "fa2", True), ("flash", "fa4", False),
     ("vllm", "auto", True), ("trtllm", "auto", False)],
)  # fmt: skip
def test_who_calls_flash_attn_without_asking_the_gpu_is_told_of_its_limits(
    runtime: str, attention: str, told: bool
) -> None:
    services = {"e": service(runtime, model="m", attention=attention)}
    found = findings(case(view(packages={"flash-attn": "2.6.3"}), services=services, on=host(gpu(sm="7.5"))))
    assert ("flash-attention-architecture" in found) == told


def test_every_rule_of_the_file_names_its_source() -> None:
    for rule in book.rules().values():
        assert rule.source
        assert all((rule.what, rule.why, rule.fix))


def test_without_a_host_the_document_still_has_its_keys() -> None:
    document = judge.judge(cases.what_if(FACTS, {"torch": "2.4.0"}, None)).document()
    assert document["host"]["gpus"] == []


def test_every_rule_that_a_diagnosis_names_can_be_explained() -> None:
    text = (Path(book.__file__).parents[1] / "diagnose" / "patterns.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r"\brule: ([a-z][a-z0-9-]+)(?=[,}\s])", re.sub(r"(?m)^#.*$", "", text)))
    assert len(named) > 20
    assert named <= set(book.rules())


def test_a_release_built_for_a_python_without_wheels_is_unknown_not_refused() -> None:
    installed = view(packages={"tensorrt-llm": "1.1.0"}, python="3.9.18")
    found = judge.judge(case(installed)).findings
    assert {each.severity for each in found if each.id == "trtllm-python"} == {"warning"}
