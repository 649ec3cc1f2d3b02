from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compat.builders import FACTS, host
from toolkit.compat import cases, judge
from toolkit.compat.model import Report
from toolkit.errors import ToolkitError
from toolkit.facts.model import version, within

SMS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def ask(gpu: str | None = "sm_90", **versions: str) -> Report:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return judge.judge(cases.what_if(FACTS, named, gpu))


def ids(report: Report) -> set[str]:
    return {finding.id for finding in report.findings}


def evidence(report: Report, rule: str) -> str:
    return "\n".join(line for finding in report.findings if finding.id == rule for line in finding.evidence)


def test_0_12_0_with_2_6_3_runs_in_one_environment_with_fused_attention_on() -> None:
    report = ask(tensorrt_llm="0.12.0", flash_attn="2.6.3", torch="2.4.0", cuda="12.5", python="3.10")
    (pair,) = report.pairs
    assert report.verdict == "runnable"
    assert (pair.a, pair.b, pair.closest, pair.needs) == ("tensorrt-llm", "flash-attn", "same-env", ())
    assert "fmha_off" not in pair.needs
    assert pair.source


def test_that_0_12_0_with_2_6_3_needs_fused_attention_off_is_unknown_in_one_process_and_unfounded_elsewhere() -> None:
    report = ask(tensorrt_llm="0.12.0", flash_attn="2.6.3", torch="2.4.0")
    lines = evidence(report, "fused-attention-need").splitlines()
    assert [line.split(":")[0] for line in lines] == ["same-process", "same-env", "same-gpu", "same-host", "apart"]
    assert lines[0].startswith("same-process: unknown")
    assert all("need not be off" in line for line in lines[1:])
    quoted = evidence(report, "quoted-claim")
    assert "supported: both accept torch 2.4.0" in quoted
    assert "unknown: whether any run with both in one process needs it off" in quoted


@pytest.mark.parametrize("torch", [None, "2.3.0", "2.3.1"])
def test_0_11_0_with_2_5_8_runs_in_one_environment_and_no_source_names_the_patch(torch: str | None) -> None:
    report = ask(tensorrt_llm="0.11.0", flash_attn="2.5.8", **({"torch": torch} if torch else {}))
    assert report.verdict == "runnable"
    assert report.pairs[0].closest == "same-env"
    assert "unknown: which patch that would be" in evidence(report, "quoted-claim")


def test_other_releases_of_the_0_11_line_are_unknown() -> None:
    report = ask(tensorrt_llm="0.11.1", flash_attn="2.5.8", torch="2.3.1")
    assert report.verdict == "unknown"
    assert "trtllm-release-unknown" in ids(report)
    assert "quoted-claim" in ids(report)


def test_a_torch_that_the_release_excludes_is_incompatible_and_leaves_environments_of_their_own() -> None:
    report = ask(tensorrt_llm="0.12.0", flash_attn="2.6.3", torch="2.5.0")
    assert report.verdict == "incompatible"
    assert report.pairs[0].closest == "same-gpu"
    assert "separate_environments" in report.pairs[0].needs


def test_a_missing_wheel_is_a_step_not_a_refusal() -> None:
    report = ask("sm_90", tensorrt_llm="1.1.0", flash_attn="2.8.3", torch="2.9.0")
    assert report.verdict == "compatible"
    assert report.pairs[0].needs == ("source_build",)
    assert "FLASH_ATTENTION_FORCE_BUILD=TRUE" in next(f.fix for f in report.findings if f.id == "flash-attn-no-wheel")


def test_a_missing_wheel_is_told_without_a_torch_too() -> None:
    assert ask(tensorrt_llm="0.12.0", flash_attn="2.5.8").verdict == "compatible"


def test_what_no_source_tells_is_unknown_not_guessed() -> None:
    report = ask(tensorrt_llm="0.18.1", flash_attn="2.7.3", torch="2.6.0")
    assert report.verdict == "unknown"
    assert "trtllm-fact-unknown" in ids(report)


@pytest.mark.parametrize(
    "versions",
    [
        {"tensorrt_llm": "0.19.0", "transformers": "5.0.0"},
        {"tensorrt_llm": "1.0.0", "torch": "2.7.1", "python": "3.14"},
        {"tensorrt_llm": "0.21.0", "torch": "2.7.1", "cuda": "11.8"},
        {"tensorrt_llm": "0.12.0", "vllm": "0.5.0"},
        {"vllm": "0.9.0", "sglang": "0.4.0"},
        {"torch": "99"},
    ],
)
def test_a_version_that_no_table_compares_is_never_called_runnable(versions: dict[str, str]) -> None:
    assert ask(**versions).verdict == "unknown"


def test_without_a_torch_the_driver_is_held_against_the_cuda_of_the_release() -> None:
    report = ask(tensorrt_llm="0.12.0", driver="470.10")
    assert "driver-cuda-version" in ids(report)
    assert "driver-cuda-version" not in ids(ask(tensorrt_llm="0.12.0", driver="555.42.02"))


@pytest.mark.parametrize(
    ("cuda", "fits"), [("12.6", True), ("12.6.3", True), ("12", True), ("12.4", False), ("13", False)]
)
def test_a_torch_of_one_cuda_is_not_judged_with_another(cuda: str, fits: bool) -> None:
    named = {"torch": "2.6.0+cu126", "cuda": cuda}
    if fits:
        assert cases.what_if(FACTS, named, None)
    else:
        with pytest.raises(ToolkitError, match=r"built with CUDA 12\.6"):
            cases.what_if(FACTS, named, None)


def test_two_spellings_of_one_package_are_refused() -> None:
    with pytest.raises(ToolkitError, match="torch is named twice"):
        cases.what_if(FACTS, {"torch": "2.4.0", "pytorch": "2.5.0"}, None)


def test_flash_attn_4_does_not_fit_a_release_that_pins_an_older_cutlass_dsl() -> None:
    report = ask(tensorrt_llm="1.2.0", flash_attn_4="4.0.0b11", torch="2.9.1")
    assert report.verdict == "incompatible"
    assert report.pairs[0].closest == "same-gpu"


@pytest.mark.parametrize(("flash", "verdict"), [("4.0.0b11", "runnable"), ("4.0.0b12", "incompatible")])
def test_a_release_that_pins_flash_attn_4_takes_that_one_alone(flash: str, verdict: str) -> None:
    assert ask(tensorrt_llm="1.3.0rc21", flash_attn_4=flash, torch="2.13.0").verdict == verdict


@pytest.mark.parametrize("gpu", ["sm_120", "sm_100"])
def test_releases_built_before_blackwell_do_not_run_on_it(gpu: str) -> None:
    report = ask(gpu, tensorrt_llm="0.12.0", torch="2.4.0")
    assert report.verdict == "incompatible"
    assert "gpu-architecture" in ids(report)


def test_a_gpu_that_flash_attn_refuses_keeps_the_two_apart() -> None:
    report = ask("sm_75", tensorrt_llm="0.11.0", flash_attn="2.5.8")
    assert report.verdict == "incompatible"
    assert report.pairs[0].closest == "apart"


def test_without_a_gpu_the_hosts_own_are_asked() -> None:
    report = judge.judge(cases.what_if(FACTS, {"flash-attn": "2.6.3"}, None, host()))
    assert report.host["gpus"][0]["compute_capability"] == "9.0"


def test_a_driver_can_be_part_of_the_question() -> None:
    assert "driver-cuda-version" in ids(ask(torch="2.9.0+cu130", driver="535.54.03"))


def test_other_spellings_of_packages_are_understood() -> None:
    assert ask(trtllm="0.12.0", flash_attention="2.6.3").pairs[0].b == "flash-attn"


@pytest.mark.parametrize(
    ("versions", "gpu", "words"),
    [
        ({"tensort-llm": "0.12.0"}, "sm_90", "tensorrt-llm"),
        ({"tensorrt-llm": "latest"}, "sm_90", "no version"),
        ({"tensorrt-llm": "0.12.0"}, "hopper", "no compute capability"),
        ({"numpy": "2.0"}, "sm_90", "nothing is known"),
    ],
)
def test_a_question_that_is_none_says_what_to_write(versions: dict[str, str], gpu: str, words: str) -> None:
    with pytest.raises(ToolkitError) as error:
        cases.what_if(FACTS, versions, gpu)
    assert words in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize("release", FACTS.releases, ids=lambda release: str(release.name))
def test_every_release_with_every_flash_attn_on_every_gpu_has_a_verdict_with_reasons(release: object) -> None:
    found = next(v for v in _versions() if within(v, release.versions))  # type: ignore[attr-defined]
    for row in FACTS.flash:
        flash = row.name.split(",")[0].lstrip("><=")
        for gpu in SMS:
            report = judge.judge(cases.what_if(FACTS, {"tensorrt-llm": found, row.package: flash}, gpu))
            (pair,) = report.pairs
            assert pair.why
            assert pair.source
            if report.verdict in {"incompatible", "unknown"}:
                effect = {"incompatible": "blocks", "unknown": "unknown"}[report.verdict]
                assert any(finding.effect == effect for finding in report.findings)


def _versions() -> list[str]:
    exact = [release.name for release in FACTS.releases if release.versions.startswith("==")]
    return [*exact, "0.18.0", "1.3.0rc3", "1.3.0rc21"]


versions = st.one_of(
    st.from_regex(r"[0-9]{1,2}(\.[0-9]{1,3}){0,3}(a|b|rc|\.post|\.dev)?[0-9]{0,3}(\+[a-z0-9]{1,6})?", fullmatch=True),
    st.text(max_size=12),
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.sampled_from((*cases.PACKAGES, *cases.SETTINGS)), versions, max_size=6),
    st.sampled_from((None, *SMS)),
)
def test_arbitrary_versions_give_a_verdict_or_a_clear_error(named: dict[str, str], gpu: str | None) -> None:
    if not all(version(found) for found in named.values()):
        with pytest.raises(ToolkitError, match="is no version"):
            cases.what_if(FACTS, named, gpu)
        return
    report = judge.judge(cases.what_if(FACTS, named, gpu))
    assert report.verdict in judge.VERDICTS
    for finding in report.findings:
        assert "{" not in finding.what + finding.why + finding.fix
