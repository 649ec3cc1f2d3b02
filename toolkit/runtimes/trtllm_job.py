"""One launch of ``trtllm-serve``: its words, environment, options file and notes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.facts.options import serve_tables
from toolkit.runtimes import environment as variables
from toolkit.runtimes import generative, mpi, trtllm_llm_args, trtllm_probes
from toolkit.runtimes import trtllm_options as options
from toolkit.runtimes import trtllm_served as serving
from toolkit.runtimes.base import PRELOAD_WINDOW_S, Assignment, Context, Launch, LogCheck
from toolkit.runtimes.trtllm_llm_args import KvCache
from toolkit.runtimes.trtllm_options import Given
from toolkit.runtimes.trtllm_release import Release
from toolkit.runtimes.trtllm_served import Served
from toolkit.units import format_cpu_list

LAUNCH = "trtllm-llmapi-launch"
# How its log shows the arguments it took, where it does: another backend than VANILLA stands there.
_OTHER_BACKEND = r"attn_backend['\"]?\s*[=:]\s*['\"]?(?!VANILLA\b)[A-Z_]+"


@dataclass(frozen=True)
class Job:
    """Everything that one launch is made of; ``launch`` makes it."""

    context: Context
    assignment: Assignment
    program: Path
    release: Release
    served: Served
    given: Given
    memory: KvCache

    def launch(self, as_root: bool) -> Launch:
        """The process. Raises: ToolkitError where ranks cannot be started one by one."""
        argv, env = self._argv(), self._env(as_root)
        by_mpirun = self.given.launcher == options.MPIRUN
        return Launch(
            argv=self._ranks(argv, env, as_root) if by_mpirun else argv,
            env=env,
            probes=trtllm_probes.probes(self.context, self.served, self.release, self.given),
            preload_window_s=self.context.service.preload_window or PRELOAD_WINDOW_S,
            notes=tuple(self._notes()),
            files=self._files(),
            log_checks=tuple(_log_checks(self.served)),
            rank_logs=by_mpirun,
            programs=(argv[0], str(self._llmapi_launch)) if by_mpirun else (),
        )

    @property
    def _llmapi_launch(self) -> Path:
        return self.program.with_name(LAUNCH)

    @property
    def _options_path(self) -> Path:
        return self.context.run_dir / trtllm_llm_args.FILE_NAME

    def _llm_args(self) -> dict[str, Any]:
        return trtllm_llm_args.compose(self.served, self.release, self.memory, self.given.llm_args)

    def _files(self) -> dict[Path, str]:
        content = self._llm_args()
        return {self._options_path: trtllm_llm_args.text(content)} if content else {}

    def _argv(self) -> tuple[str, ...]:
        """The server itself: what stands before its options is the model."""
        return (str(self.program), *self.release.subcommand, str(self.served.folder), *self._flags())

    def _flags(self) -> Iterator[str]:
        service = self.context.service
        if self.served.tokenizer is not None:
            yield from ("--tokenizer", str(self.served.tokenizer))
        if self.served.backend is not None:
            yield from ("--backend", self.served.backend)
        yield from ("--host", service.host, "--port", str(self.assignment.port))
        yield from ("--tp_size", str(service.tp_size), "--pp_size", str(service.pp_size))
        if self.release.has("--gpus_per_node") and self.assignment.device_uuids:
            yield from ("--gpus_per_node", str(len(self.assignment.device_uuids)))
        for name in serving.LIMITS:
            if name in self.served.limits and name not in self.given.values:
                yield from (f"--{name}", str(self.served.limits[name]))
        if self.memory.free_fraction is not None:
            yield from ("--kv_cache_free_gpu_memory_fraction", str(self.memory.free_fraction))
        yield from self.given.words
        if self._llm_args() and self.release.options_file is not None:
            yield from (self.release.options_file, str(self._options_path))

    def _env(self, as_root: bool) -> dict[str, str]:
        """The whole environment; the service's own variables win."""
        allowed = mpi.ALLOW_ROOT if as_root else {}
        return {**self.release.variables, **allowed, **variables.build(self.context, self.assignment)}

    def _ranks(self, argv: tuple[str, ...], env: Mapping[str, str], as_root: bool) -> tuple[str, ...]:
        """The same server, each rank started and pinned by itself; rank 0 serves, the others wait for its work."""
        named = self.context.deployment.environments.get(self.context.service.environment or "")
        if named is not None and named.image is not None:
            raise ToolkitError(
                "ranks in a container are not pinned one by one",
                f"services.{self.context.name}.options.{options.LAUNCHER}",
                "Remove it: the container holds all of them on the service's CPUs.",
                code="unsupported",
            )
        return mpi.ranks(
            (str(self._llmapi_launch), *argv),
            self.context.service.world_size,
            rank_cpus=self.assignment.rank_cpus,
            env=env,
            output_dir=self.context.log_dir,
            python=self.context.python,
            as_root=as_root,
        )

    def _notes(self) -> Iterator[str]:
        yield from self.release.notes
        yield from generative.notes(self.context.service, self.assignment, knob="free_gpu_memory_fraction")
        yield from () if self.memory.note is None else (self.memory.note,)
        yield from trtllm_llm_args.notes(self._llm_args(), self.served, self.release)
        yield from _attention_notes(self.served, self.release)
        yield from self._rank_notes()
        if self.served.is_engine and self.context.recipe is None:
            yield "its recipe is not here: what it says of tokenizer, sizes and attention is left out"
        if not self.assignment.device_uuids:
            yield "the plan gives it no GPU, and TensorRT-LLM needs one"

    def _rank_notes(self) -> Iterator[str]:
        ranks = self.context.service.world_size
        if ranks == 1:
            return
        cpus = format_cpu_list(self.assignment.cpus)
        if self.given.launcher == options.MPIRUN:
            parts = "; ".join(format_cpu_list(each) for each in self.assignment.rank_cpus)
            yield f"each of its {ranks} ranks is pinned to CPUs of its own: {parts}"
        else:
            pinned = f"'options: {{{options.LAUNCHER}: {options.MPIRUN}}}' pins each of them"
            yield f"trtllm-serve starts its {ranks} ranks itself: they share the CPUs {cpus}; {pinned}"


def _attention_notes(served: Served, found: Release) -> Iterator[str]:
    if not served.vanilla:
        return
    yield "attention: vanilla means 'not TensorRT-LLM's own kernels': torch may take fused ones (SDPA, flash-attn)"
    yield "it costs speed, most with long prompts; block reuse, chunked prefill and draft tokens are off with it"
    row = found.llm_arg("attn_backend") or {}
    if row.get("note"):
        yield f"where attn_backend stands in the options file of {found.version} is {row['status']}: {row['note']}"
    told = "its log is searched for that" if found.tells_fallback else "its log need not say so"
    yield f"that VANILLA was really taken can't be observed: a backend that is not taken becomes TRTLLM, and {told}"


def _log_checks(served: Served) -> Iterator[LogCheck]:
    if served.vanilla:
        why = "'attention: vanilla' was asked for, and TensorRT-LLM took another attention backend: its log says so"
        yield LogCheck(str(serve_tables()["attention_fallback"]["pattern"]), why)
        yield LogCheck(_OTHER_BACKEND, why)
