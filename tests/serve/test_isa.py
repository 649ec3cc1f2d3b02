from __future__ import annotations

from pathlib import Path

from toolkit.serve.isa import cpu_features, missing_features

X86 = "processor : 0\nflags\t\t: fpu sse2 avx2 avx512_bf16 hypervisor lahf_lm\n\nprocessor : 1\nflags\t\t: fpu\n"


def cpuinfo(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return path


def test_only_instruction_sets_count(tmp_path: Path) -> None:
    assert cpu_features(cpuinfo(tmp_path, X86)) == ("avx2", "avx512_bf16", "sse2")


def test_arm_calls_them_features(tmp_path: Path) -> None:
    assert cpu_features(cpuinfo(tmp_path, "Features\t: fp asimd sve cpuid bf16\n")) == ("asimd", "bf16", "fp", "sve")


def test_what_the_processor_lacks_is_named(tmp_path: Path) -> None:
    assert missing_features(["sse2", "amx_bf16"], cpuinfo(tmp_path, X86)) == ("amx_bf16",)


def test_a_kernel_that_does_not_say_refuses_nothing(tmp_path: Path) -> None:
    assert cpu_features(tmp_path / "none") == ()
    assert missing_features(["amx_bf16"], tmp_path / "none") == ()
