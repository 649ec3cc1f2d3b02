"""Whether a canary's answer is right. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from toolkit.runtimes.base import CanaryCheck
from toolkit.warm.model import CanaryResult


def judge_text(check: CanaryCheck, text: str, token_ids: tuple[int, ...] | None) -> CanaryResult:
    """Right when the answer begins with the expected text, and with the expected tokens where it tells its own."""
    if check.expected_text is not None and not _begins(text, check.expected_text):
        return CanaryResult(False, check.expected_text, text)
    if check.expected_tokens is not None and token_ids is not None:
        ok = token_ids[: len(check.expected_tokens)] == check.expected_tokens
        if not ok or check.expected_text is None:
            return CanaryResult(ok, f"tokens {list(check.expected_tokens)}", f"tokens {list(token_ids)}")
    if check.repeats_only:
        return CanaryResult(bool(text), "the same answer each time; which one is right is not known", text)
    if check.expected_text is None:
        return CanaryResult(False, "no expected answer is recorded", text)
    return CanaryResult(True, check.expected_text, text)


def judge_vector(check: CanaryCheck, vector: Sequence[float]) -> CanaryResult:
    """The cosine to the expected vector must reach ``min_cosine``."""
    expected = check.expected_vector
    if expected is None:
        return CanaryResult(False, "no expected vector is recorded", f"{len(vector)} numbers")
    if len(expected) != len(vector):
        return CanaryResult(False, f"{len(expected)} numbers", f"{len(vector)} numbers")
    similarity = cosine(expected, vector)
    wanted = f"cosine of at least {check.min_cosine:g} to the recorded vector"
    return CanaryResult(similarity >= check.min_cosine, wanted, f"cosine {similarity:.6f}")


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of one length; NaN when either has no direction."""
    norms = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms > 0 else math.nan


def _begins(text: str, expected: str) -> bool:
    if not expected.strip():
        return text == expected
    # Some servers drop the space that most tokenizers put in front of the first word.
    return text.lstrip().startswith(expected.lstrip())
