from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.build.trtllm_bench import RELEASES, TrtllmBench, make
from tests.standins import trtllm_build as standin
from toolkit.build.trtllm_words import ELSEWHERE
from toolkit.errors import ManyFaultsError
from toolkit.facts import build_options

FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
INT8_KV = {"quantization": {"quant_algo": "W8A16", "kv_cache_quant_algo": "INT8"}}
FP8_KV_ALONE = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
FP8_WEIGHTS_ALONE = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}


def faults(caught: pytest.ExceptionInfo[ManyFaultsError]) -> str:
    return "\n".join(map(str, caught.value.errors))


@pytest.mark.parametrize("release", RELEASES[:20])
@pytest.mark.parametrize("reuse", ["true", "false"])
@pytest.mark.parametrize("quantization", [{}, FP8, FP8_WEIGHTS_ALONE], ids=["plain", "fp8", "fp8 weights"])
def test_no_quantized_checkpoint_leads_to_a_switch_or_a_refusal_of_the_builder(
    release: str, reuse: str, quantization: dict[str, Any], trtllm: TrtllmBench, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((trtllm.checkpoint(1, **quantization) / "config.json").read_text())
    text = f"checkpoint: ckpt\nkv_cache: {{reuse: {reuse}}}\n"
    if release in ("0.8.0", "0.9.0") and reuse == "true" and quantization is FP8:
        with pytest.raises(ManyFaultsError):
            trtllm.choose(release, text)
        return
    chosen = trtllm.choose(release, text)
    assert_kept(chosen.argv(), config, release)
    assert "is set to" not in capsys.readouterr().out
    if reuse == "true":
        assert chosen.value("--use_paged_context_fmha") == "enable"


@pytest.mark.parametrize("release", RELEASES[:20])
@pytest.mark.parametrize("quantization", [INT8_KV, FP8_KV_ALONE], ids=["int8 kv", "fp8 kv alone"])
def test_a_kv_cache_that_excludes_paged_context_attention_gets_none(
    release: str, quantization: dict[str, Any], trtllm: TrtllmBench, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((trtllm.checkpoint(1, **quantization) / "config.json").read_text())
    chosen = trtllm.choose(release)
    assert chosen.value("--use_paged_context_fmha") == "disable"
    assert_kept(chosen.argv(), config, release)
    assert "is set to" not in capsys.readouterr().out
    with pytest.raises(ManyFaultsError, match="cannot be reused"):
        trtllm.choose(release, "checkpoint: ckpt\nkv_cache: {reuse: true}\n")


def assert_kept(argv: tuple[str, ...], checkpoint: dict[str, Any], release: str) -> None:
    options = standin.table(release)
    args = standin.parse(list(argv), options)
    standin.constrain(standin.plugin_config(args, options, "float16"), args, checkpoint, release)


@pytest.mark.parametrize("kind", ["paged", "continuous"])
@pytest.mark.parametrize("release", RELEASES[:20])
def test_the_kind_of_kv_cache_is_said_as_the_release_wants_it(release: str, kind: str, trtllm: TrtllmBench) -> None:
    chosen = trtllm.choose(release, f"checkpoint: ckpt\nkv_cache: {{type: {kind}}}\n")
    options = standin.table(release, strict=True)
    assert standin.kv_type(standin.parse(list(chosen.argv()), options)) == kind


def test_disabled_cannot_be_said_before_there_was_a_word_for_it(trtllm: TrtllmBench) -> None:
    text = "checkpoint: ckpt\nkv_cache: {type: disabled}\n"
    assert trtllm.choose("0.13.0", text).value("--kv_cache_type") == "disabled"
    with pytest.raises(ManyFaultsError, match="cannot be told 'disabled'"):
        trtllm.choose("0.11.0", text)


@pytest.mark.parametrize(("release", "words"), [("0.10.0", "bfloat16"), ("0.11.0", "auto")])
def test_plugins_of_one_type_get_the_checkpoints(release: str, words: str, trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(dtype="bfloat16")
    assert trtllm.choose(release).value("--gpt_attention_plugin") == words


@pytest.mark.parametrize(("release", "default"), [("0.18.2", "disable"), ("0.19.0", "enable")])
def test_defaults_that_changed_are_written_out(release: str, default: str, trtllm: TrtllmBench) -> None:
    chosen = trtllm.choose(release)
    assert chosen.value("--use_paged_context_fmha") == default
    assert chosen.value("--tokens_per_block") == "32"


@pytest.mark.parametrize("release", ["0.8.0", "0.21.0", "1.2.0", "1.3.0rc20"])
@pytest.mark.parametrize(("size", "nearest"), [(3, "2 or 4"), (48, "32 or 64"), (100, "64 or 128")])
def test_blocks_that_no_attention_kernel_can_count_are_refused_with_the_nearest_sizes(
    release: str, size: int, nearest: str, trtllm: TrtllmBench
) -> None:
    text = f"checkpoint: ckpt\nkv_cache: {{tokens_per_block: {size}}}\n"
    with pytest.raises(ManyFaultsError, match=f"tokens_per_block {size} is no power of two") as caught:
        trtllm.choose(release, text)
    (fault,) = caught.value.errors
    assert f"Write {nearest}." in str(fault)
    assert "recipe.yaml" in str(fault.where)
    assert "kv_cache.tokens_per_block" in str(fault.where)


@pytest.mark.parametrize(
    "cache", ["tokens_per_block: 1", "tokens_per_block: 128", "type: continuous, tokens_per_block: 48"]
)
def test_powers_of_two_are_taken_and_a_cache_without_blocks_has_any_size(cache: str, trtllm: TrtllmBench) -> None:
    assert trtllm.choose("0.21.0", f"checkpoint: ckpt\nkv_cache: {{{cache}}}\n").argv()


def test_old_gpus_get_no_paged_context_attention_where_they_have_none(trtllm: TrtllmBench) -> None:
    reuse = "checkpoint: ckpt\nkv_cache: {reuse: true}\n"
    assert trtllm.choose("0.12.0", reuse, sm=80).value("--use_paged_context_fmha") == "enable"
    with pytest.raises(ManyFaultsError, match="SM 70 has no kernels"):
        trtllm.choose("0.12.0", reuse, sm=70)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kv_cache: {reuse: true}\n", "cannot be reused without paged context attention"),
        ("options: {use_paged_context_fmha: enable}\n", "'use_paged_context_fmha: enable' cannot be"),
        ("options: {use_fp8_context_fmha: true}\n", "'use_fp8_context_fmha: enable' cannot be"),
        ("options: {bert_context_fmha_fp32_acc: enable}\n", "'bert_context_fmha_fp32_acc: enable' cannot be"),
        ("options: {speculative_decoding_mode: medusa}\n", "draft tokens need fused attention"),
        ("options: {max_draft_len: 3}\n", "draft tokens need fused attention"),
        ("limits: {max_input_len: 512, max_seq_len: 1024, max_num_tokens: 256}\n", "cannot be cut into chunks"),
        ("options: {gpt_attention_plugin: disable}\n", "the paged KV cache is in this plugin"),
    ],
)
def test_disable_refuses_what_would_answer_wrong(text: str, says: str, trtllm: TrtllmBench) -> None:
    with pytest.raises(ManyFaultsError) as caught:
        trtllm.choose("0.21.0", f"checkpoint: ckpt\nfmha: disable\n{text}")
    assert says in faults(caught)
    assert "recipe.yaml" in faults(caught)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("gemm_plugn: auto", "Did you mean 'gemm_plugin'?"),
        ("enable_xqa: enable", "Other releases have it: 0.8.0 to 0.15.0"),
        ("strongly_typed: true", "Other releases have it: 0.8.0 to 0.10.0"),
        ("gemm_plugin: fp7", "Did you mean 'fp8'?"),
        ("gemm_plugin: true", "'gemm_plugin' takes one of auto, "),
        ("max_beam_width: four", "takes a whole number, not 'four'"),
        ("max_beam_width: true", "takes a whole number, not true"),
        ("max_draft_len: -1", "takes no number below zero: -1"),
        ("fast_build: enable", "takes true or false, not 'enable'"),
        ("gemm_plugin: null", "has no value"),
        ("logits_dtype: [float16]", "takes one of "),
        ("max_batch_size: 4", "limits.max_batch_size"),
        ("tokens_per_block: 64", "kv_cache.tokens_per_block"),
        ("output_timing_cache: x", "coexist keeps one"),
        ("context_fmha: disable", "Write it as 'fmha'"),
        ("multiple_profiles: enable, opt_num_tokens: 64", "'multiple_profiles: enable' excludes it"),
        ("reduce_fusion: enable", "with tp_size 1"),
        ("user_buffer: enable", "without 'reduce_fusion: enable'"),
        ("use_fused_mlp: disable, gemm_swiglu_plugin: fp8", "it needs 'use_fused_mlp'"),
        ("use_fp8_context_fmha: enable", "the builder would switch it"),
        ("gather_context_logits: true, max_draft_len: 2", "draft tokens exclude it"),
        ("lora_target_modules: [attn_q, attn_x]", "Did you mean 'attn_"),
    ],
)
def test_options_are_checked_against_the_release(options: str, says: str, trtllm: TrtllmBench) -> None:
    with pytest.raises(ManyFaultsError) as caught:
        trtllm.choose("0.21.0", f"checkpoint: ckpt\noptions: {{{options}}}\n")
    assert says in faults(caught)


def test_all_faults_are_told_at_once(trtllm: TrtllmBench) -> None:
    with pytest.raises(ManyFaultsError) as caught:
        trtllm.choose("0.21.0", "checkpoint: ckpt\noptions: {nothing: 1, gemm_plugin: x, max_batch_size: 2}\n")
    assert len(caught.value.errors) == 3


def test_words_of_truth_become_enable_and_disable_and_flags_stand_alone(trtllm: TrtllmBench) -> None:
    text = "checkpoint: ckpt\noptions: {paged_state: false, streamingllm: true, fast_build: true, strip_plan: false}\n"
    chosen = trtllm.choose("0.17.0", text)
    assert chosen.words["--paged_state"] == ("disable",)
    assert chosen.words["--fast_build"] == ()
    assert "--strip_plan" not in chosen.words


def test_lists_become_several_words(trtllm: TrtllmBench) -> None:
    chosen = trtllm.choose("0.21.0", "checkpoint: ckpt\noptions: {lora_target_modules: [attn_q, attn_v]}\n")
    assert chosen.words["--lora_target_modules"] == ("attn_q", "attn_v")


def test_an_alias_is_the_option_it_stands_for(trtllm: TrtllmBench) -> None:
    chosen = trtllm.choose("0.21.0", "checkpoint: ckpt\noptions: {max_multimodal_len: 64}\n")
    assert chosen.value("--max_prompt_embedding_table_size") == "64"
    both = "{max_multimodal_len: 64, max_prompt_embedding_table_size: 64}"
    with pytest.raises(ManyFaultsError, match="are the same option"):
        trtllm.choose("0.21.0", f"checkpoint: ckpt\noptions: {both}\n")


def test_drafts_bring_the_paged_context_attention_they_need(trtllm: TrtllmBench) -> None:
    text = "checkpoint: ckpt\noptions: {speculative_decoding_mode: draft_tokens_external, max_draft_len: 4}\n"
    assert trtllm.choose("0.17.0", text).value("--use_paged_context_fmha") == "enable"


def test_a_float32_checkpoint_is_told_to_fall_back(trtllm: TrtllmBench) -> None:
    trtllm.checkpoint(dtype="float32")
    assert "no fused kernels for float32" in " ".join(trtllm.choose("0.21.0").notes)


def test_another_dtype_than_the_checkpoints_is_noted(trtllm: TrtllmBench) -> None:
    notes = " ".join(trtllm.choose("0.21.0", "checkpoint: ckpt\ndtype: bfloat16\n").notes)
    assert "dtype bfloat16 is asked for, but the checkpoint is float16" in notes


def values(name: str, release: str) -> st.SearchStrategy[Any]:
    table = build_options(release)
    assert table is not None
    option = table.options[name]
    right: st.SearchStrategy[Any] = st.just("word")
    if option.kind == "flag":
        right = st.booleans()
    elif option.kind == "int":
        right = st.integers(0, 64)
    elif option.choices:
        right = st.sampled_from(option.choices)
    return right | st.sampled_from([True, False, None, -3, 1.5, "enable", "fp8", "", "--x", "a=b", [1], {"a": 1}])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    release = draw(st.sampled_from(sorted(standin.TABLES)))
    table = build_options(release)
    assert table is not None
    names = sorted(set(table.options) - set(ELSEWHERE))
    picked = draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
    options = {name.removeprefix("--"): draw(values(name, release)) for name in picked}
    quantization = draw(st.sampled_from([{}, FP8, INT8_KV, FP8_KV_ALONE, FP8_WEIGHTS_ALONE]))
    return release, draw(st.sampled_from(["enable", "disable"])), options, quantization


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TrtllmBench:
    return make(tmp_path_factory.mktemp("options"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_whatever_the_options_they_are_refused_here_or_accepted_and_kept_there(
    case: tuple[str, str, dict[str, Any], dict[str, Any]], shared: TrtllmBench
) -> None:
    release, fmha, options, quantization = case
    folder = shared.checkpoint(1, **quantization)
    text = yaml.safe_dump({"checkpoint": "ckpt", "fmha": fmha, "options": options})
    try:
        chosen = shared.choose(release, text)
    except ManyFaultsError:
        return
    table = standin.table(release)
    args = standin.parse(list(chosen.argv()), table)
    before = standin.plugin_config(args, table, "float16")
    after = dict(before)
    standin.constrain(after, args, json.loads(Path(folder, "config.json").read_text()), release)
    assert after == before
    if fmha == "disable":
        assert not [name for name, value in after.items() if "context_fmha" in name and value]


def test_an_option_may_be_written_with_dashes(trtllm: TrtllmBench) -> None:
    chosen = trtllm.choose("0.16.0", "checkpoint: ckpt\noptions: {use-fused-mlp: enable, --gemm-plugin: auto}\n")
    assert (chosen.value("--use_fused_mlp"), chosen.value("--gemm_plugin")) == ("enable", "auto")
    with pytest.raises(ManyFaultsError) as caught:
        trtllm.choose("0.16.0", "checkpoint: ckpt\noptions: {context-fmha: enable}\n")
    assert "Write it as 'fmha'." in faults(caught)


def test_an_option_of_other_releases_is_not_taken_for_a_slip(trtllm: TrtllmBench) -> None:
    with pytest.raises(ManyFaultsError) as caught:
        trtllm.choose("0.16.0", "checkpoint: ckpt\noptions: {enable_xqa: disable}\n")
    assert "Other releases have it: 0.8.0 to 0.15.0." in faults(caught)
    assert "Did you mean" not in faults(caught)


@pytest.mark.parametrize("option", ["workers: 0", "max_beam_width: 0"])
def test_a_count_of_nothing_is_refused(option: str, trtllm: TrtllmBench) -> None:
    with pytest.raises(ManyFaultsError) as caught:
        trtllm.choose("0.16.0", f"checkpoint: ckpt\noptions: {{{option}}}\n")
    assert "takes a whole number from 1, not 0" in faults(caught)
