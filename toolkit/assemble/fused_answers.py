"""What a fused engine answered when it was proven: right answers for other engines of its checkpoint.

For models that plain transformers cannot answer for here. Leads are not known then, so only first words are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit import canaries
from toolkit.assemble.launches import Engine, Stage
from toolkit.canaries import Answer, CanarySet, Reference
from toolkit.errors import ToolkitError
from toolkit.files import read_json, write_atomic
from toolkit.warm import Proof

_FIRST_WORD = re.compile(r"\s*\S+")


def remember(stage: Stage, proofs: Mapping[str, Proof]) -> None:
    """Records the answers of every serving fused engine that nothing was recorded of, once for each checkpoint."""
    for name, proof in proofs.items():
        engine = stage.engines.get(stage.deployment.services[name].engine or "")
        path = _path(stage.home.references, engine.facts if engine is not None else None)
        document = stage.references.get(name)
        if engine is None or path is None or document is None or not _is_fused(engine.facts) or path.exists():
            continue
        asked = canaries.of_document(document)
        if not asked.references and proof.answers:
            _write(path, recorded(asked, proof.answers, engine))


def _write(path: Path, document: Mapping[str, Any]) -> None:
    # A full disk must not end what serves; the next start records them.
    with suppress(ToolkitError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document))


def recorded(asked: CanarySet, answers: Mapping[str, Answer], engine: Engine) -> dict[str, Any]:
    """The same prompts with the first word of each answer as the right one, as a document."""
    words = {name: match[0] for name, answer in answers.items() if (match := _FIRST_WORD.match(answer.text))}
    references = {name: Reference((), (), word) for name, word in words.items()}
    source = f"first words of the fused engine {engine.fingerprint[:16]} of the same checkpoint"
    return canaries.to_document(replace(asked, references=references, source=source))


def find(folder: Path, facts: Mapping[str, Any] | None, asked: CanarySet) -> CanarySet | None:
    """The set with what a fused engine of this engine's checkpoint answered; None: none was asked the same."""
    path = _path(folder, facts)
    if path is None:
        return None
    try:
        known = canaries.of_document(read_json(path, default=None) or {})
    except (ToolkitError, ValueError):
        return None
    texts = {prompt.id: prompt.text for prompt in known.prompts}
    same = {prompt.id for prompt in asked.prompts if texts.get(prompt.id) == prompt.text}
    references = {name: reference for name, reference in known.references.items() if name in same}
    return replace(asked, references=references, source=known.source) if "short" in references else None


def _is_fused(facts: Mapping[str, Any]) -> bool:
    plugins = facts.get("plugin_config")
    return isinstance(plugins, Mapping) and plugins.get("context_fmha") in (True, "enable")


def _path(folder: Path, facts: Mapping[str, Any] | None) -> Path | None:
    checkpoint = (facts or {}).get("checkpoint")
    return folder / f"{checkpoint[:16]}.fused.json" if isinstance(checkpoint, str) else None
