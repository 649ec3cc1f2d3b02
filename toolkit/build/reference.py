"""The recorded right answer of a model that is served without a build: made once per content of its folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.build.environment import base_env
from toolkit.errors import ToolkitError
from toolkit.files import json_object, parsed_object, write_atomic
from toolkit.runtimes.builtin import RUN
from toolkit.store import fingerprint, hash_files

FORMAT = 1
# Of ``serve/reference.py``: the environment has no transformers.
NO_TRANSFORMERS = 4
TIMEOUT_S = 900.0
# Of a model folder, what answers depend on.
FILES = ("**/*.json", "**/*.safetensors", "**/*.txt", "**/*.model")


@dataclass(frozen=True)
class Outcome:
    """How a child ended, and what it wrote."""

    status: int
    output: str
    errors: str

    @property
    def reason(self) -> str:
        """Why it failed, as it said last."""
        lines = self.errors.strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else f"exit status {self.status}"


Run = Callable[[Sequence[str], Mapping[str, str]], Outcome]


def run_child(argv: Sequence[str], env: Mapping[str, str]) -> Outcome:
    """The outcome of a child process with this environment; status 124 after ``TIMEOUT_S``.

    Raises: OSError when the program cannot be started.
    """
    try:
        done = subprocess.run(
            argv, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(124, "", f"no answer within {TIMEOUT_S:g} s")
    return Outcome(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def ensure(
    model_dir: Path,
    prompt: str,
    pythons: Sequence[Path],
    folder: Path,
    *,
    hash_cache: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    run: Run = run_child,
) -> Mapping[str, Any]:
    """The reference for this model and prompt (``prompt``, ``vector``, ``source``), reused from ``folder`` or made now.

    ``pythons``: interpreters to try in order, the service's own first; the first that has transformers makes it. Where
    none has, coexist's own encoder makes it in the first one, and ``source`` is "coexist".

    Raises: ToolkitError when the model cannot be read.
    """
    files = hash_files(model_dir, FILES, hash_cache)
    name = fingerprint({"format": FORMAT, "prompt": prompt, "files": files})
    path = folder / f"{name[:16]}.json"
    if known := _recorded(path, prompt):
        return known
    made = _make(model_dir, prompt, pythons, environ, run)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(made))
    return made


def _recorded(path: Path, prompt: str) -> Mapping[str, Any] | None:
    """What was recorded; a damaged record is none, for it can be made again."""
    known = json_object(path)
    return known if _is_reference(known, prompt) else None


def _make(
    model_dir: Path, prompt: str, pythons: Sequence[Path], environ: Mapping[str, str], run: Run
) -> Mapping[str, Any]:
    flags = ["--model-dir", str(model_dir), "--prompt", prompt]
    attempts = [(python, flags) for python in dict.fromkeys(pythons)]
    for python, arguments in [*attempts, (pythons[0], [*flags, "--own"])]:
        try:
            outcome = run([str(python), str(RUN), "reference", *arguments], on_the_cpu(python, environ))
        except OSError as error:
            raise ToolkitError(f"cannot be started: {error.strerror}", str(python), code="no_python") from error
        if outcome.status != NO_TRANSFORMERS:
            break
    return _read(outcome, model_dir, prompt)


def on_the_cpu(python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a child that computes on the CPU: a GPU is not ours to use before the plan gives it away."""
    return {**base_env(python, environ), "CUDA_VISIBLE_DEVICES": "", "GOMP_SPINCOUNT": "1000"}


def _read(outcome: Outcome, model_dir: Path, prompt: str) -> Mapping[str, Any]:
    if outcome.status != 0:
        raise ToolkitError(
            f"no reference answer can be made of this model: {outcome.reason}",
            str(model_dir),
            "Check the model folder.",
            code="no_reference",
        )
    made = parsed_object(outcome.output)
    if made is None or not _is_reference(made, prompt):
        raise ToolkitError("the reference answer of this model holds no vector", str(model_dir), code="no_reference")
    return made


def _is_reference(document: Mapping[str, Any] | None, prompt: str) -> bool:
    if document is None or document.get("prompt") != prompt:
        return False
    vector = document.get("vector")
    return isinstance(vector, list) and len(vector) > 0 and all(isinstance(x, (int, float)) for x in vector)
