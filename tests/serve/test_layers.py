from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.serve.small_models import write_bert
from toolkit.serve import layers
from toolkit.serve.attention import Attention
from toolkit.serve.encoder import Checkpoint, Encoder, read_encoder_config
from toolkit.serve.layers import ACTIVATIONS, Linear, linear
from toolkit.serve.packing import can_pack

needs_packing = pytest.mark.skipif(not can_pack("cpu", "float32"), reason="oneDNN does not pack here")


@needs_packing
@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_packed_maps_compute_what_plain_ones_do(rows: int, activation: str) -> None:
    torch.manual_seed(0)
    weight, bias, x, y = torch.randn(24, 16), torch.randn(24), torch.randn(rows, 16), torch.randn(rows, 24)
    packed, plain = linear(weight, bias), Linear(weight, bias)
    assert packed.packed
    for mine, expected in (
        (packed(x), plain(x)),
        (packed.activated(x, activation), ACTIVATIONS[activation](plain(x))),
        (packed.added(x, y), plain(x) + y),
    ):
        torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not can_pack("cpu", "bfloat16"), reason="oneDNN has no bfloat16 here")
def test_packed_maps_have_the_data_type_of_their_weights() -> None:
    torch.manual_seed(0)
    weight, bias, x = (torch.randn(*shape).bfloat16() for shape in ((24, 16), (24,), (5, 16)))
    mine = linear(weight, bias).activated(x, "gelu")
    assert mine.dtype == torch.bfloat16
    expected = ACTIVATIONS["gelu"](x.float() @ weight.float().T + bias.float())
    torch.testing.assert_close(mine.float(), expected, atol=0.05, rtol=0.02)


def test_without_packing_an_encoder_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> torch.Tensor:
        encoder = Encoder(
            read_encoder_config(write_bert(tmp_path)),
            Checkpoint(tmp_path, torch.device("cpu"), torch.float32, lambda _: None),
        )
        with torch.inference_mode():
            return encoder.forward([[2, 5, 3], [2, 6, 7, 8, 3]], Attention("sdpa"))

    before = states()
    monkeypatch.setattr(layers, "can_pack", lambda *_: False)
    torch.testing.assert_close(states(), before, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("device", "dtype"), [("cuda", "float32"), ("cpu", "float16")])
def test_only_what_this_processor_multiplies_is_packed(device: str, dtype: str) -> None:
    assert not can_pack(device, dtype)
