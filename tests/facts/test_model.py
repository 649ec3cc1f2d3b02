from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import facts
from toolkit.facts.model import capability, nvidia_build, version, within

FACTS = facts.load()


@pytest.mark.parametrize(
    ("found", "torch"),
    [
        ("0.8.0", "<=2.2.0a0"),
        ("0.11.0", ">=2.3.0a0,<=2.4.0a0"),
        ("0.12.0", ">=2.4.0a0,<=2.4.0"),
        ("0.19.0", ">=2.6.0,<=2.7.0a0"),
        ("1.1.0", "==2.9.0"),
        ("1.2.0+cu130", "==2.9.1"),
        ("1.3.0rc3", ">=2.10.0,<=2.11.0a0"),
    ],
)
def test_a_release_tells_the_torch_it_accepts(found: str, torch: str) -> None:
    release = FACTS.trtllm(found)
    assert release is not None
    fact = release.fact("torch")
    assert fact is not None
    assert fact.value == torch


@pytest.mark.parametrize("found", ["0.7.1", "0.11.1", "0.13.1", "1.0.1", "1.3.0rc12", "2.0.0", "no version", None])
def test_a_release_nobody_read_is_unknown(found: str | None) -> None:
    assert FACTS.trtllm(found) is None


def test_the_torch_of_the_0_18_line_is_unknown() -> None:
    release = FACTS.trtllm("0.18.1")
    assert release is not None
    assert release.fact("torch") is None


def test_the_conflict_over_the_tensorrt_of_0_11_is_shown() -> None:
    release = FACTS.trtllm("0.11.0")
    assert release is not None
    fact = release.fact("tensorrt")
    assert fact is not None
    assert fact.exact == "10.1.0.27"
    assert "conflict" in (fact.note or "")


def test_versions_are_compared_as_versions_not_as_text() -> None:
    assert within("0.10.0", ">=0.9.0") is True
    assert within("2.10.0", "<2.9.0") is False
    assert within("2.6.0+cu124", "<=2.6.0") is True


def test_a_range_that_is_no_range_gives_no_answer() -> None:
    assert within("1.0", "about two") is None
    assert within("nightly", ">=1") is None
    assert version("nightly") is None


@pytest.mark.parametrize(
    ("torch", "release"),
    [("2.7.0a0+79aa17489c.nv25.4", "2.7.0"), ("2.4.0a0+nv24.7", "2.4.0"), ("2.7.0", None), ("2.7.0+cu128", None),
     ("2.7.0a0+git79aa174", None), ("nightly", None), (None, None)],
)  # fmt: skip
def test_a_torch_of_nvidia_s_containers_names_the_release_it_stands_for(torch: str | None, release: str | None) -> None:
    assert nvidia_build(torch) == release


@pytest.mark.parametrize(
    ("torch", "cuda", "abi"),
    [("2.4.0", "12.1", "old"), ("2.6.0", "12.4", "old"), ("2.6.0+cu126", "12.6", "new"), ("2.7.1", "12.8", "new"),
     ("2.13.0", None, "new"), ("2.6.0", None, None), ("2.4.0a0+nv24.7", "12.5", None)],
)  # fmt: skip
def test_the_abi_of_torch_wheels(torch: str, cuda: str | None, abi: str | None) -> None:
    row = FACTS.abi_of_torch(torch, cuda)
    assert (row.abi if row else None) == abi


@pytest.mark.parametrize(
    ("package", "found", "sm", "runs"),
    [
        ("flash-attn", "2.6.3", 90, True),
        ("flash-attn", "2.6.3", 75, False),
        ("flash-attn", "2.6.3", 120, False),
        ("flash-attn", "2.8.3", 120, True),
        ("flash-attn-3", "3.0.0b1", 86, None),
        ("flash-attn-3", "3.0.0b1", 100, False),
        ("flash-attn-4", "4.0.0b2", 80, False),
        ("flash-attn-4", "4.0.0b11", 80, True),
    ],
)
def test_which_gpus_flash_attn_accepts(package: str, found: str, sm: int, runs: bool | None) -> None:
    row = FACTS.flash_attn(package, found)
    assert row is not None
    assert row.runs_on(sm) is runs


def test_wheels_have_code_for_later_minors_of_a_major_only() -> None:
    new, old = FACTS.flash_attn("flash-attn", "2.8.3"), FACTS.flash_attn("flash-attn", "2.7.4.post1")
    assert new is not None
    assert old is not None
    assert new.wheel_has_code_for(121)
    assert new.wheel_has_code_for(86)
    assert not old.wheel_has_code_for(100)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("sm_90", 90), ("sm90", 90), ("9.0", 90), ("90", 90), (" sm_90 ", 90), ("sm_90a", 90), ("12.0", 120),
        ("sm_120f", 120), ("9", None), ("x", None), ("sm_900", None), ("999", None), ("9.00", None),
        ("\uff19\uff10", None),
    ],
)  # fmt: skip
def test_compute_capabilities_as_people_write_them(text: str, number: int | None) -> None:
    assert capability(text) == number


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_is_too_strange_for_a_version(one: str, two: str) -> None:
    assert FACTS.trtllm(one) is None or version(one) is not None
    assert within(one, two) in {True, False, None}
    assert capability(one) is None or isinstance(capability(one), int)
