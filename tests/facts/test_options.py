from __future__ import annotations

import pytest

from toolkit.facts import build_options, serve_options


@pytest.mark.parametrize("release", ["0.8.0", "0.11.0", "0.12.0", "0.17.0", "0.19.0", "1.0.0", "1.2.0", "1.3.0rc20"])
def test_context_fmha_is_on_by_default_in_every_release_that_builds_engines(release: str) -> None:
    table = build_options(release)
    assert table is not None
    option = table.find("--context_fmha")
    assert option is not None
    assert (option.default, option.choices, option.plugin) == ("enable", ("enable", "disable"), True)


@pytest.mark.parametrize(("release", "default"), [("0.8.0", "disable"), ("0.18.2", "disable"), ("0.19.0", "enable")])
def test_the_default_of_paged_context_fmha_changed_in_0_19(release: str, default: str) -> None:
    table = build_options(release)
    assert table is not None
    option = table.find("--use_paged_context_fmha")
    assert option is not None
    assert option.default == default


@pytest.mark.parametrize(("release", "tokens"), [("0.9.0", 128), ("0.10.0", 64), ("0.18.2", 64), ("0.19.0", 32)])
def test_the_block_size_of_the_kv_cache(release: str, tokens: int) -> None:
    table = build_options(release)
    assert table is not None
    assert table.options["--tokens_per_block"].default == tokens


@pytest.mark.parametrize("release", ["0.8.0", "0.12.0", "0.16.0", "0.21.0", "1.2.0"])
def test_no_release_has_an_option_to_disable_flash_attention(release: str) -> None:
    table = build_options(release)
    assert table is not None
    assert not [name for name in table.options if "flash" in name]


def test_the_build_command_is_gone_after_1_3_0rc20() -> None:
    assert build_options("1.3.0rc20") is not None
    assert build_options("1.3.0rc21") is None
    assert build_options("1.4.0") is None


def test_options_removed_in_a_release_are_not_in_its_table() -> None:
    after = {name: table.options for name in ("0.11.0", "0.12.0", "0.16.0") if (table := build_options(name))}
    assert "--context_fmha_fp32_acc" in after["0.11.0"]
    assert "--context_fmha_fp32_acc" not in after["0.12.0"]
    assert "--enable_xqa" not in after["0.16.0"]


def test_a_release_between_two_texts_is_marked_as_inferred() -> None:
    table = build_options("1.0.0")
    assert table is not None
    assert (table.status, table.read_at) == ("inferred", "0.21.0")
    firm = build_options("0.11.0")
    assert firm is not None
    assert firm.status == "exact_tag"


def test_what_is_unsure_says_why() -> None:
    table = build_options("0.12.0")
    assert table is not None
    assert table.options["--tp_size"].unsure
    assert table.options["--context_fmha"].unsure is None


def test_names_and_aliases_of_serve_options_lead_to_the_same_option() -> None:
    table = serve_options("1.2.0")
    assert table is not None
    assert table.find("--tensor_parallel_size") is table.find("--tp_size")
    assert table.find("--dtype") is None


@pytest.mark.parametrize(("release", "default"), [("0.21.0", None), ("1.0.0", "pytorch")])
def test_the_default_backend_of_serve(release: str, default: str | None) -> None:
    table = serve_options(release)
    assert table is not None
    backend = table.find("--backend")
    assert backend is not None
    assert backend.default == default


def test_no_serve_command_is_known_before_0_15() -> None:
    assert serve_options("0.14.0") is None
    assert serve_options("0.19.0", "disaggregated") is not None
    assert serve_options("nightly") is None
    assert build_options("nightly") is None
