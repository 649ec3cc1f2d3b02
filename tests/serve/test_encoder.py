from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel

from tests.serve.small_models import BERT, bert_tensors, write_bert
from toolkit.errors import ToolkitError
from toolkit.serve.attention import Attention, Needs, candidates, obstacle
from toolkit.serve.batcher import Tokens
from toolkit.serve.encoder import FAMILIES, Checkpoint, Encoder, bias_bucket, read_encoder_config
from toolkit.serve.sentence import SentenceConfig, SentenceEncoder, choose_attention

CPU = torch.device("cpu")
TEXTS = [[2, 9, 3], [2, 5, 6, 7, 8, 3], [2, 40, 3], [2, 11, 12, 13, 14, 15, 16, 17, 18, 3]]


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Encoder:
    return Encoder(read_encoder_config(folder), Checkpoint(folder, CPU, dtype, lambda _: None))


def forward(encoder: Encoder, texts: list[list[int]], attention: str = "sdpa") -> list[torch.Tensor]:
    with torch.inference_mode():
        hidden = encoder.forward(texts, Attention(attention))
    return list(torch.split(hidden, [len(text) for text in texts]))


SMALL: dict[str, dict[str, Any]] = {
    "bert": {"hidden_act": "gelu_new"},
    "roberta": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
    "camembert": {"pad_token_id": 1},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
    "mpnet": {"pad_token_id": 1},
}


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "vanilla"])
def test_every_family_computes_what_transformers_computes(tmp_path: Path, kind: str, attention: str) -> None:
    sizes = (
        {} if kind == "distilbert" else {k: v for k, v in BERT.items() if k.startswith(("num_", "hidden_s", "inter"))}
    )
    config = AutoConfig.for_model(kind, vocab_size=64, max_position_embeddings=40, **sizes, **SMALL[kind])
    torch.manual_seed(0)
    model = AutoModel.from_config(config).eval()
    model.save_pretrained(tmp_path)
    mine = forward(load(tmp_path), TEXTS, attention)
    for text, hidden in zip(TEXTS, mine, strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(hidden, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
@pytest.mark.parametrize("seconds", [(), (None, 3, None, 5)])
def test_padding_of_a_batch_changes_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seconds: tuple[int | None, ...]
) -> None:
    sizes = {k: v for k, v in BERT.items() if k.startswith(("num_", "hidden_s", "inter"))}
    config = AutoConfig.for_model(kind, vocab_size=64, max_position_embeddings=24, **sizes, **SMALL[kind])
    AutoModel.from_config(config).eval().save_pretrained(tmp_path)
    encoder = load(tmp_path)
    seen: list[int] = []

    class Observed(Attention):
        def __call__(self, q: torch.Tensor, *rest: Any) -> torch.Tensor:
            seen.append(len(q))
            return super().__call__(q, *rest)

    texts = [*TEXTS, [5] * 20, [6] * 20, [7] * 20]
    given = (*seconds, *[None] * 3) if seconds else ()
    with torch.inference_mode():
        padded = encoder.forward(texts, Observed("sdpa"), given)
        monkeypatch.setattr(encoder, "_fillers", lambda count: iter(()))
        plain = encoder.forward(texts, Attention("sdpa"), given)
    torch.testing.assert_close(padded, plain, atol=1e-5, rtol=1e-4)
    assert set(seen) == {96}  # of 83


def test_packing_changes_no_text(tmp_path: Path) -> None:
    encoder = load(write_bert(tmp_path))
    together = forward(encoder, TEXTS)
    for text, hidden in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(hidden, forward(encoder, [text])[0], atol=1e-5, rtol=1e-4)


def test_a_text_as_long_as_the_positions_runs(tmp_path: Path) -> None:
    encoder = load(write_bert(tmp_path))
    assert forward(encoder, [[5] * encoder.config.max_length])[0].shape == (24, 32)


def test_weights_under_the_prefix_of_a_head_and_with_tensorflow_s_names_are_found(tmp_path: Path) -> None:
    write_bert(tmp_path)
    expected = forward(load(tmp_path), TEXTS)
    renamed = {
        "bert."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in bert_tensors().items()
    }
    save_file({**renamed, "cls.predictions.bias": torch.zeros(3)}, tmp_path / "model.safetensors")
    for mine, before in zip(forward(load(tmp_path), TEXTS), expected, strict=True):
        assert torch.equal(mine, before)


def test_shards_are_read_and_bytes_are_told(tmp_path: Path) -> None:
    write_bert(tmp_path)
    expected = forward(load(tmp_path), TEXTS)
    tensors = load_file(tmp_path / "model.safetensors")
    halves = [dict(list(tensors.items())[n::2]) for n in range(2)]
    weight_map = {}
    for n, half in enumerate(halves):
        save_file(half, tmp_path / f"part{n}.safetensors")
        weight_map.update(dict.fromkeys(half, f"part{n}.safetensors"))
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    told: list[int] = []
    encoder = Encoder(read_encoder_config(tmp_path), Checkpoint(tmp_path, CPU, torch.float32, told.append))
    assert torch.equal(forward(encoder, TEXTS)[0], expected[0])
    assert sum(told) == sum(tensor.nbytes for tensor in tensors.values())
    (tmp_path / "part1.safetensors").unlink()
    with pytest.raises(ToolkitError, match=r"part1\.safetensors"):
        load(tmp_path)


def test_half_precision_weights_are_computed_in_the_asked_dtype(tmp_path: Path) -> None:
    write_bert(tmp_path)
    halves = {name: tensor.half() for name, tensor in bert_tensors().items()}
    save_file(halves, tmp_path / "model.safetensors")
    assert load(tmp_path).dtype == torch.float32


# Damaged and unsupported folders.


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = write_bert(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ToolkitError, match=r"model\.safetensors: not a whole safetensors file"):
        load(tmp_path)


def test_a_missing_weight_is_named(tmp_path: Path) -> None:
    write_bert(tmp_path)
    tensors = bert_tensors()
    del tensors["encoder.layer.1.output.dense.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ToolkitError, match=r"'encoder\.layer\.1\.output\.dense\.bias' is missing"):
        load(tmp_path)


def test_weights_of_another_size_or_kind_are_refused(tmp_path: Path) -> None:
    write_bert(tmp_path, vocab_size=65)
    with pytest.raises(ToolkitError, match="not floating \\[65, 32\\]"):
        load(tmp_path)
    write_bert(tmp_path)
    save_file({name: tensor.long() for name, tensor in bert_tensors().items()}, tmp_path / "model.safetensors")
    with pytest.raises(ToolkitError, match="is int64"):
        load(tmp_path)


def test_a_folder_without_safetensors_says_so(tmp_path: Path) -> None:
    (write_bert(tmp_path) / "model.safetensors").unlink()
    with pytest.raises(ToolkitError, match=r"model\.safetensors is missing"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2Model"]}, "GPT2Model"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "swiglu"}, "swiglu"),
        ({"num_attention_heads": 5}, "5 heads"),
        ({"hidden_size": None}, "size is missing or wrong"),
    ],
)
def test_what_is_unsupported_is_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write_bert(tmp_path, **changes)
    with pytest.raises(ToolkitError, match=says):
        read_encoder_config(tmp_path)


def test_an_unsupported_architecture_comes_with_the_supported_list(tmp_path: Path) -> None:
    write_bert(tmp_path, model_type="gpt2")
    with pytest.raises(ToolkitError) as refused:
        read_encoder_config(tmp_path)
    assert "xlm-roberta" in str(refused.value.hint)


# Attention by name.


def test_on_a_cpu_auto_is_sdpa_and_the_kernel_that_ran_is_told(tmp_path: Path) -> None:
    attention = choose_attention(load(write_bert(tmp_path)), "auto")
    assert attention.used == "sdpa"
    assert attention.kernels
    assert all("scaled_dot_product" in name or "softmax" in name for name in attention.kernels)


@pytest.mark.parametrize("asked", ["vanilla", "eager"])
def test_vanilla_attention_calls_no_fused_kernel(tmp_path: Path, asked: str) -> None:
    attention = choose_attention(load(write_bert(tmp_path)), asked)
    assert attention.used == "vanilla"
    assert attention.kernels == ("aten::_softmax",)


def test_a_path_that_never_ran_is_not_reported() -> None:
    assert Attention("sdpa").used is None


@pytest.mark.parametrize("name", ["fa4", "fa3", "fa2"])
def test_a_flash_kernel_asked_for_on_a_cpu_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match=f"attention '{name}' cannot be used here.*CUDA") as refused:
        choose_attention(load(write_bert(tmp_path)), name)
    assert "sdpa" in str(refused.value.hint)


def test_flash_kernels_are_picked_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Needs(torch.device("cuda"), torch.float16)
    order = {}
    for capability in ((7, 5), (8, 0), (9, 0), (10, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        order[capability] = [name for name in candidates("auto", needs) if obstacle(name, needs) is None]
    assert order[7, 5] == ["sdpa"]
    assert order[8, 0] == ["fa2", "sdpa"]
    assert order[9, 0] == ["fa4", "fa3", "fa2", "sdpa"]
    assert order[10, 0] == ["fa4", "fa2", "sdpa"]


def test_flash_kernels_need_half_precision_and_take_no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    cuda = torch.device("cuda")
    assert "float16 or bfloat16" in str(obstacle("fa2", Needs(cuda, torch.float32)))
    assert "MPNet" in str(obstacle("fa2", Needs(cuda, torch.float16, has_bias=True)))


MODULES = {"fa4": "flash_attn.cute", "fa3": "flash_attn_interface", "fa2": "flash_attn"}


def exact_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
) -> torch.Tensor:
    """Attention as a varlen kernel defines it, which checks everything that a kernel takes on trust."""
    assert q.shape == k.shape == v.shape
    assert all(tensor.stride(-1) == 1 for tensor in (q, k, v))
    for starts, longest in ((cu_seqlens_q, max_seqlen_q), (cu_seqlens_k, max_seqlen_k)):
        assert starts.dtype == torch.int32
        assert starts.device == q.device
        lengths = starts.diff()
        assert (starts[0].item(), starts[-1].item()) == (0, len(q))
        assert lengths.min() > 0
        assert type(longest) is int
        assert longest == lengths.max()
    parts = []
    for first, last in zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:], strict=False):
        one, two, three = (tensor[first:last].transpose(0, 1).double() for tensor in (q, k, v))
        parts.append(torch.softmax(one @ two.mT / q.shape[-1] ** 0.5, dim=-1) @ three)
    return torch.cat([part.transpose(0, 1) for part in parts]).to(q.dtype)


def with_lse(*given_: Any, **more: Any) -> tuple[torch.Tensor, None]:
    return exact_varlen(*given_, **more), None


@pytest.fixture(params=["fa4", "fa3", "fa2"])
def flash(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Attention:
    """A flash path whose library computes exact attention; generations 3 and 4 give the log-sum-exp too."""
    name = str(request.param)
    module = ModuleType(MODULES[name])
    module.flash_attn_varlen_func = exact_varlen if name == "fa2" else with_lse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, MODULES[name], module)
    return Attention(name)


def test_a_varlen_kernel_gets_every_text_without_padding_and_gives_the_same_states(
    flash: Attention, tmp_path: Path
) -> None:
    encoder = load(write_bert(tmp_path))
    expected = torch.cat(forward(encoder, TEXTS, "vanilla"))
    with torch.inference_mode():
        torch.testing.assert_close(encoder.forward(TEXTS, flash), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(encoder.forward(TEXTS[1:2], flash), expected[3:9], atol=1e-5, rtol=1e-4)
    assert flash.used == flash._name
    assert flash.kernels


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=12), min_size=1, max_size=9))
def test_batches_of_any_lengths_are_the_same_on_every_path(
    flash: Attention, tmp_path: Path, texts: list[list[int]]
) -> None:
    config = SentenceConfig(tmp_path if (tmp_path / "config.json").exists() else write_bert(tmp_path))
    weights = load(tmp_path)
    items = [Tokens(tuple(text)) for text in texts]
    results = [SentenceEncoder(weights, config, path).embed(items) for path in (flash, Attention("sdpa"))]
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("distance", [-200, -128, -40, -17, -8, -7, -1, 0, 1, 7, 8, 9, 31, 64, 127, 128, 300])
def test_position_buckets_are_mpnet_s(distance: int) -> None:
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder  # noqa: PLC0415 - 100 MB that few tests need

    value = torch.tensor([distance])
    assert bias_bucket(value, 32).item() == MPNetEncoder.relative_position_bucket(value).item()
