"""The options file of trtllm-serve: arguments of the LLM API that no flag sets. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml

from toolkit.facts.options import serve_tables
from toolkit.runtimes import knobs, trtllm_guards
from toolkit.runtimes.base import Assignment
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL
from toolkit.runtimes.trtllm_release import Release
from toolkit.runtimes.trtllm_served import Served

FILE_NAME = "llm-api-options.yaml"
VANILLA = "VANILLA"
_SLIP = 0.85  # how alike two names are, of 1
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class KvCache:
    """What the KV cache may take: a fraction of what is free then, and tokens; None: not known, or not to be told.

    ``bounded``: with it the service stays within its budget.
    """

    free_fraction: float | None = None
    max_tokens: int | None = None
    bounded: bool = True
    note: str | None = None


def kv_cache(assignment: Assignment, release: Release) -> KvCache:
    """The ledger's budget in TensorRT-LLM's numbers, the least of all devices."""
    memory = assignment.memory
    if not memory:
        return KvCache()
    if any(each.budget_bytes is None for each in memory):
        note = "its need of GPU memory is not known: its KV cache takes 0.9 of what is free; 'gpu_memory' bounds it"
        return KvCache(bounded=False, note=note)
    may_cap = release.llm_arg("max_tokens") is not None
    max_tokens = _least(knobs.trtllm_max_tokens(each) if may_cap else None for each in memory)
    fraction = _least(knobs.trtllm_free_fraction(each, capped=max_tokens is not None) for each in memory)
    if all(each.kv_bytes is not None for each in memory):
        return KvCache(fraction, max_tokens)
    note = "what its weights take is not known here: with them it may pass its budget, of which its KV cache gets all"
    return KvCache(fraction, bounded=False, note=note)


def _least(values: Iterable[_Number | None]) -> _Number | None:
    """The least of all devices; None when one of them is not known."""
    found = list(values)
    return None if None in found else min(each for each in found if each is not None)


def compose(served: Served, release: Release, memory: KvCache, written: Mapping[str, Any]) -> dict[str, Any]:
    """The file's content: what coexist decides, and what the service writes beside it. Empty: no file is needed."""
    made: dict[str, Any] = {}
    for key, value in _decided(served, memory):
        row = release.llm_arg(key)
        if row is not None:
            (made if row["in"] is None else made.setdefault(row["in"], {}))[key] = value
    return _merged(made, written)


def _decided(served: Served, memory: KvCache) -> Iterator[tuple[str, Any]]:
    if served.reuse is not None:
        yield "enable_block_reuse", served.reuse
    # Beside it the fraction of the flag would be lost: in older releases this part of the file replaces the flag's.
    if memory.free_fraction is not None:
        yield "free_gpu_memory_fraction", memory.free_fraction
    if memory.max_tokens is not None:
        yield "max_tokens", memory.max_tokens
    if served.able is not None and CHUNKED_PREFILL in trtllm_guards.to_switch_off(served.able):
        yield "enable_chunked_prefill", False
    if served.vanilla:
        yield "attn_backend", VANILLA


def _merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(ours)
    for key, value in theirs.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def text(content: Mapping[str, Any]) -> str:
    """The file."""
    return str(yaml.safe_dump(dict(content), sort_keys=False))


def notes(content: Mapping[str, Any], served: Served, release: Release) -> Iterator[str]:
    """What the file says in one line, and what cannot be said where there is none."""
    if content:
        shown = yaml.safe_dump(dict(content), sort_keys=False, default_flow_style=True, width=10_000).strip()
        yield f"{FILE_NAME}: {shown}"
        yield from _slips(content)
    if release.options_file is not None:
        return
    none = f"trtllm-serve {release.version} takes no options file"
    if served.able is not None and not any(served.able.values()):
        yield f"{none}: block reuse and chunked prefill are off because its engine has no paged context attention"
    elif served.reuse:
        yield f"{none}: whether it reuses blocks is its own default, whatever the recipe says"


def _slips(content: Mapping[str, Any]) -> Iterator[str]:
    """Keys that look like slips of the pen of known ones: TensorRT-LLM ends at a key that it does not know."""
    for above, known in serve_tables()["llm_keys"]["known"].items():
        keys = content.get(above) if above else content
        for key in keys if isinstance(keys, Mapping) else ():
            near = difflib.get_close_matches(str(key), known, 1, _SLIP)
            if near and key not in known:
                place = f"{above}.{key}" if above else key
                yield f"{FILE_NAME}: '{place}' is not known here; did you mean '{near[0]}'? TensorRT-LLM refuses others"
