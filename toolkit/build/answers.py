"""The right answers to a canary set: made once per content of a model folder, by plain transformers on the CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toolkit import canaries
from toolkit.build.reference import FILES, NO_TRANSFORMERS, Outcome, Run, on_the_cpu, run_child
from toolkit.canaries import Reach
from toolkit.errors import ToolkitError
from toolkit.files import json_object, parsed_object, read_json, write_atomic
from toolkit.runtimes.builtin import RUN
from toolkit.store import fingerprint, hash_files
from toolkit.units import GIB, format_bytes

FORMAT = 1
# The rest of the child's time is for loading, and for reading all answers again in the served data type.
BUDGET_S = 240.0
# Beside float32 weights: libraries, cache, logits. Read for 135M parameters: 0.65 GiB, see docs/readings.md.
_BESIDE_BYTES = 2 * GIB
_FLOAT32_BYTES = 4
DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Asked:
    """Of which model, with which prompts (several: the surest is taken), how far they reach, served in which type."""

    model_dir: Path
    prompts: tuple[str, ...]
    max_tokens: int
    reach: Reach
    dtype: str


def ensure(
    asked: Asked,
    pythons: Sequence[Path],
    folder: Path,
    *,
    available_bytes: int,
    hash_cache: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    run: Run = run_child,
    report: Callable[[str], None] = lambda line: None,
) -> Mapping[str, Any]:
    """The canary set with its right answers and ``measured``, as a document; reused from ``folder`` or made now.

    ``pythons``: interpreters to try in order. ``available_bytes``: host memory that may be taken.

    Raises: ToolkitError ``no_reference`` when none can be made, with the reason.
    """
    path = _path(asked, folder, hash_cache)
    if known := _recorded(path):
        return known
    _check_memory(asked.model_dir, available_bytes)
    report(f"recording right answers of {asked.model_dir.name}: plain transformers on the CPU, once for this model")
    made = _make(asked, pythons, environ, run)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(made))
    return made


def foresee(asked: Asked, folder: Path, *, available_bytes: int) -> None:
    """Raises ToolkitError ``no_reference`` when ``ensure`` would, as far as that is seen without making any."""
    try:
        _check_memory(asked.model_dir, available_bytes)
    except ToolkitError:
        if _recorded(_path(asked, folder, None)) is None:
            raise


def _path(asked: Asked, folder: Path, hash_cache: Path | None) -> Path:
    return folder / f"{key(asked, hash_cache)[:16]}.answers.json"


def key(asked: Asked, hash_cache: Path | None) -> str:
    """What the answers depend on."""
    wanted = {"prompts": asked.prompts, "max_tokens": asked.max_tokens, "reach": asdict(asked.reach)}
    files = hash_files(asked.model_dir, FILES, hash_cache)
    return fingerprint({"format": FORMAT, "dtype": asked.dtype, "files": files, **wanted})


def _recorded(path: Path) -> Mapping[str, Any] | None:
    """What was recorded; a damaged record is none, for it can be made again."""
    return _sound(json_object(path))


def _sound(document: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The document, if it holds right answers."""
    try:
        canaries.of_document(document or {})
    except ValueError:
        return None
    return document


def float32_bytes(model_dir: Path) -> int | None:
    """Memory that the model's weights take in float32; None: it has no weights in safetensors files."""
    stored_bytes = sum(path.stat().st_size for path in model_dir.glob("*.safetensors"))
    return stored_bytes * _FLOAT32_BYTES // DTYPES[stored_dtype(model_dir)] if stored_bytes else None


def stored_dtype(model_dir: Path) -> str:
    """The element type that the model's config names; bfloat16 when it names none that is known."""
    config = read_json(model_dir / "config.json", default={})
    several = (config, config.get("text_config")) if isinstance(config, dict) else ()
    named = [part.get(name) for part in several if isinstance(part, dict) for name in ("dtype", "torch_dtype")]
    return next((str(name) for name in named if name in DTYPES), "bfloat16")


def _check_memory(model_dir: Path, available_bytes: int) -> None:
    needed_bytes = float32_bytes(model_dir)
    if needed_bytes is None:
        raise _none(model_dir, "it has no weights in safetensors files")
    if needed_bytes + _BESIDE_BYTES > available_bytes:
        needed = f"it takes {format_bytes(needed_bytes + _BESIDE_BYTES)} of host memory in float32"
        raise _none(model_dir, f"{needed}, and {format_bytes(available_bytes)} are available")


def _make(asked: Asked, pythons: Sequence[Path], environ: Mapping[str, str], run: Run) -> Mapping[str, Any]:
    """What the first interpreter that can says; else why the first that has transformers cannot."""
    reasons: list[str] = []
    for python in dict.fromkeys(pythons):
        try:
            outcome = run([str(python), str(RUN), "answers", *_flags(asked)], on_the_cpu(python, environ))
        except OSError as error:
            reasons.append(f"{python} cannot be started ({error.strerror})")
            continue
        if outcome.status == 0 and (made := _sound(parsed_object(outcome.output))):
            return made
        reasons.append(_reason(python, outcome))
    raise _none(asked.model_dir, "; ".join(reasons))


def _flags(asked: Asked) -> list[str]:
    reach = asked.reach
    numbers = {
        "--max-tokens": asked.max_tokens,
        "--tokens-per-block": reach.tokens_per_block,
        "--max-num-tokens": reach.max_num_tokens,
        "--max-input-len": reach.max_input_len,
        "--budget-s": BUDGET_S,
    }
    flags = [
        "--model-dir",
        str(asked.model_dir),
        "--dtype",
        asked.dtype,
        *(f"--prompt={each}" for each in asked.prompts),
    ]
    flags += [word for flag, value in numbers.items() for word in (flag, str(value))]
    return [*flags, "--chunked-prefill"] if reach.chunked_prefill else flags


def _reason(python: Path, outcome: Outcome) -> str:
    if outcome.status == NO_TRANSFORMERS:
        return f"{python} has no transformers"
    return f"transformers of {python}: {outcome.reason}"


def _none(model_dir: Path, why: str) -> ToolkitError:
    return ToolkitError(
        f"no right answers can be recorded of this model: {why}",
        str(model_dir),
        "Write 'canary: {prompt: …, expected: …}' for its service.",
        code="no_reference",
        why=why,
    )
