from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serve.test_compiled import made
from tests.serve.test_decoder import PROMPT, plain
from toolkit.errors import ToolkitError
from toolkit.serve.compiled import CompiledEngine
from toolkit.serve.verify_engine import check_canary, check_logits, greedy


def with_reference(folder: Path, tokens: int = 4) -> tuple[CompiledEngine, dict[str, Any], Path]:
    engine, model, _ = made(folder)
    expected: list[int] = []
    for _ in range(tokens):
        expected.append(int(plain(model, [*PROMPT, *expected]).argmax()))
    info: dict[str, Any] = {
        **engine.info,
        "dtype": "float32",
        "canary": {"prompt_tokens": PROMPT, "tokens": expected},
        "verify": {"long_prompt": PROMPT},
    }
    engine.info = info
    reference = folder / "reference.npy"
    np.save(reference, plain(model, PROMPT).numpy())
    return engine, info, reference


def test_an_engine_that_answers_as_the_model_passes(tmp_path: Path) -> None:
    engine, _, reference = with_reference(tmp_path)
    check_canary(engine)
    assert check_logits(engine, reference) < 1e-4
    assert [engine.length(slot) for slot in range(engine.max_batch_size)] == [0, 0, 0, 0]


@pytest.mark.parametrize("position", [0, 3])
def test_one_wrong_token_anywhere_is_refused(position: int, tmp_path: Path) -> None:
    engine, info, _ = with_reference(tmp_path)
    info["canary"]["tokens"][position] += 1
    with pytest.raises(ToolkitError, match="answers the canary") as caught:
        check_canary(engine)
    assert caught.value.code == "canary_wrong"


def test_slots_that_disturb_each_other_are_found(tmp_path: Path) -> None:
    engine, _, _ = with_reference(tmp_path)
    right = engine.decode

    def disturbed(slots: Any, tokens: Any) -> Any:
        logits = right(slots, tokens)
        return logits.flip(1) if len(slots) > 1 else logits

    engine.decode = disturbed  # type: ignore[method-assign]
    with pytest.raises(ToolkitError, match="answers the canary") as caught:
        check_canary(engine)
    assert "of 4" in str(caught.value.where)


@pytest.mark.parametrize("spoil", [lambda x: x * 1.01, lambda x: x * np.nan])
def test_logits_that_are_off_are_refused(spoil: Any, tmp_path: Path) -> None:
    engine, _, reference = with_reference(tmp_path)
    np.save(reference, spoil(np.load(reference)))
    with pytest.raises(ToolkitError, match="are off by"):
        check_logits(engine, reference)


def test_slots_decode_the_same_alone_and_together(tmp_path: Path) -> None:
    engine, _, _ = with_reference(tmp_path)
    alone = greedy(engine, [2], PROMPT, 5)[0]
    assert greedy(engine, [0, 1, 2, 3], PROMPT, 5) == [alone] * 4
