"""Parts of stages with what they took, from what the program, its log and the machine tell. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from toolkit.facts import program_logs
from toolkit.supervise.lifecycle import PRELOAD, PRIME, Instance, State
from toolkit.warm.model import PARTS, PRIME_PARTS, Memory, StageReport

ALL = "all"  # the stage as a whole, as the machine sees it


@dataclass(frozen=True)
class Part:
    """One part of a stage; None: not told. Bytes are what it added."""

    stage: State
    name: str
    seconds: float | None = None
    host_bytes: int | None = None
    gpu_bytes: int | None = None


def with_log(report: StageReport, lines: Iterable[str]) -> StageReport:
    """The report of a program that tells its parts in its log only."""
    told = program_logs.parts(lines)
    seconds = {name: part.seconds for name, part in told.items()}
    sizes = {name: part.gpu_bytes for name, part in told.items() if part.gpu_bytes is not None}
    return replace(report, parts={**report.parts, **seconds}, gpu_bytes={**report.gpu_bytes, **sizes})


def with_memory(report: StageReport, memory: Memory) -> StageReport:
    """The report with what the instance holds now; what no part accounts for on a GPU is its CUDA context's."""
    host = {} if memory.host_bytes is None else {ALL: memory.host_bytes}
    if memory.gpu_bytes is None:
        return replace(report, host_bytes={**report.host_bytes, **host})
    rest = memory.gpu_bytes - sum(report.gpu_bytes.values())
    context = {} if "context" in report.gpu_bytes else {"context": max(0, rest)}
    gpu = {**report.gpu_bytes, **context, ALL: memory.gpu_bytes}
    return replace(report, host_bytes={**report.host_bytes, **host}, gpu_bytes=gpu)


def of(instance: Instance) -> tuple[Part, ...]:
    """What is known of the parts of its attempt so far."""
    report, proof = instance.report, instance.proof
    found: list[Part] = []
    if report is not None:
        found += _parts(PRELOAD, PARTS, report.parts, report.host_bytes, report.gpu_bytes)
    if proof is not None:
        found += _parts(PRIME, PRIME_PARTS, proof.parts, proof.host_bytes, proof.gpu_bytes)
    return tuple(found)


def _parts(
    stage: State, order: tuple[str, ...], seconds: Mapping[str, float | None], *sizes: Mapping[str, int]
) -> Iterator[Part]:
    host, gpu = sizes
    for name in dict.fromkeys((*order, *seconds, *host, *gpu)):
        part = Part(stage, name, seconds.get(name), host.get(name), gpu.get(name))
        if part != Part(stage, name):
            yield part
