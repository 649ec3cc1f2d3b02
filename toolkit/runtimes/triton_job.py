"""One launch of ``tritonserver``: its repository, words, environment and probes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolkit.config.models import HttpRequest
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.runtimes import environment as variables
from toolkit.runtimes import generative, mpi, pbtxt
from toolkit.runtimes import triton_repository as repository
from toolkit.runtimes.base import (
    PRELOAD_WINDOW_S,
    Assignment,
    CanaryCheck,
    Context,
    Generation,
    HttpProbe,
    Launch,
    LogCheck,
    Probes,
)
from toolkit.runtimes.containers import OF_THIS_MACHINE
from toolkit.runtimes.generation_canary import canary_of
from toolkit.runtimes.service_notes import notes_of
from toolkit.runtimes.triton_engine import Engine, release
from toolkit.runtimes.triton_options import Given
from toolkit.runtimes.triton_repository import CONFIG, INNER
from toolkit.units import format_cpu_list

REPOSITORY = "repository"
LIVE, READY = HttpProbe("/v2/health/live"), HttpProbe("/v2/health/ready")
LOG_CHECKS = (
    LogCheck(
        r"(?i)failed to run warm-?up|\bwarm-?up error\b",
        "a warm-up request of one of its models failed, though it says it is ready",
    ),
    LogCheck(r"(?i)failed to load '[^']+' version", "one of its models was not loaded, though it says it is ready"),
)
# As long as requests may take that are in flight when it is told to end; less than what kills it.
EXIT_SHARE = 0.8


@dataclass(frozen=True)
class Job:
    """Everything that one launch is made of."""

    context: Context
    assignment: Assignment
    given: Given

    def launch(self, as_root: bool) -> Launch:
        """The process. Raises: ToolkitError as ``TritonRuntime.launch`` does."""
        context = self.context
        files = self._engine.files(self._repository) if context.service.engine is not None else {}
        if context.service.engine is None:
            self._lint()
        env = self._env()
        ranks = self.context.service.world_size > 1
        return Launch(
            argv=self._ranks(env, as_root) if ranks else self._server(0),
            env=env,
            probes=self._probes(),
            preload_window_s=context.service.preload_window or PRELOAD_WINDOW_S,
            notes=tuple(self._notes()),
            files=files,
            log_checks=LOG_CHECKS,
            rank_logs=ranks and not self._in_container,
            programs=("tritonserver",) if ranks else (),
            ports=self.given.ports,
        )

    @property
    def _repository(self) -> Path:
        if self.context.service.engine is not None:
            return self.context.run_dir / REPOSITORY
        return self.context.model_dir or Path("repository")

    @property
    def _engine(self) -> Engine:
        return Engine(self.context, self.assignment, self.given)

    @property
    def _program(self) -> str:
        return str(self.context.program.executable) if self.context.program else "tritonserver"

    # The server's words.

    def _server(self, rank: int) -> tuple[str, ...]:
        """The argv of one rank: the first one answers, the others only hold their part of the engine."""
        generated = ("--disable-auto-complete-config",) if self.context.service.engine is not None else ()
        return (
            *(self._program, f"--model-repository={self._repository}", *generated),
            f"--backend-config=python,shm-region-prefix-name={self._prefix(rank)}",
            *(self._doors() if rank == 0 else _CLOSED),
            "--exit-on-error=true",
        )

    def _doors(self) -> Iterator[str]:
        service, ports = self.context.service, self.given.ports
        yield from (f"--http-address={service.host}", f"--http-port={self.assignment.port}")
        for door, key in (("grpc", "grpc_port"), ("metrics", "metrics_port")):
            if key in ports:
                yield from (f"--allow-{door}=true", f"--{door}-address={service.host}", f"--{door}-port={ports[key]}")
            else:
                yield f"--allow-{door}=false"
        yield "--strict-readiness=true"
        yield f"--exit-timeout-secs={max(1, int(service.grace * EXIT_SHARE))}"
        yield from self.given.words

    def _prefix(self, rank: int) -> str:
        """Of its own for every attempt: what a killed one left in shared memory must not be met again."""
        token = hashlib.sha256(self.context.token.encode()).hexdigest()[:8]
        return f"coexist_{self.assignment.port}_{token}_{rank}_"

    def _ranks(self, env: Mapping[str, str], as_root: bool) -> tuple[str, ...]:
        """One server a rank, as the back end wants it; each rank's output in a file of its own."""
        absent = OF_THIS_MACHINE if self._in_container else ()
        names = sorted(name for name in env if name not in (*mpi.NOT_PASSED, *absent))
        passed = tuple(word for name in names for word in ("-x", name))
        words = [
            *(mpi.MPIRUN, "--bind-to", "none", "--oversubscribe"),
            *(("--allow-run-as-root",) if as_root else ()),
            *(() if self._in_container else mpi.output(self.context.log_dir)),
        ]
        for rank in range(self.context.service.world_size):
            words += [*((":",) if rank else ()), "-n", "1", *passed, *self._pinned(rank)]
        return tuple(words)

    def _pinned(self, rank: int) -> tuple[str, ...]:
        cpus = self.assignment.rank_cpus
        if self._in_container or not cpus:
            return self._server(rank)
        alone = ("--cpus", format_cpu_list(cpus[rank]))
        return (str(self.context.python), "-I", "-S", str(mpi.PIN), *alone, "--", *self._server(rank))

    @property
    def _in_container(self) -> bool:
        named = self.context.deployment.environments.get(self.context.service.environment or "")
        return named is not None and named.image is not None

    def _env(self) -> dict[str, str]:
        """The whole environment; the service's own variables win."""
        return variables.build(self.context, self.assignment)

    # A repository that is there.

    def _lint(self) -> None:
        """Raises ManyFaultsError for each model that would not be served as it says."""
        faults = [fault for fault in self._repository_faults() if fault.blocks]
        if faults:
            raise ManyFaultsError(
                tuple(
                    ToolkitError(each.what, str(self._repository / each.model / CONFIG), each.hint, code="repository")
                    for each in faults
                )
            )

    def _repository_faults(self) -> Iterator[repository.Fault]:
        devices = len(self.assignment.device_uuids)
        for path in sorted(self._repository.glob(f"*/{CONFIG}")):
            try:
                config = pbtxt.read(path.read_text(encoding="utf-8", errors="replace"))
            except (OSError, ValueError) as error:
                yield repository.Fault(path.parent.name, f"it cannot be read: {error}", "Correct it.", True)
                continue
            yield from repository.lint(path.parent.name, config, devices)

    # What is asked of it.

    def _probes(self) -> Probes:
        service = self.context.service
        if isinstance(service.canary, HttpRequest):
            request = _probe(service.canary)
            warmup = tuple(_probe(each) for each in service.warmup_requests)
            generation = self._generation() if service.engine is not None else None
            return Probes(
                loaded=READY,
                live=LIVE,
                warmup=warmup,
                canary=CanaryCheck(request=request),
                generation=generation or Generation("request", request.path, request=request),
            )
        canary, canary_set = canary_of(self.context)
        return Probes(
            loaded=READY,
            live=LIVE,
            warmup=tuple(self._warmup()),
            canary=canary,
            canary_set=canary_set,
            generation=self._generation(),
        )

    def _generation(self) -> Generation:
        return Generation(
            "completions",
            f"/v2/models/{self._engine.entry}",
            max_input_tokens=self._engine.limits().get("max_input_len"),
            wire="triton" if self.given.backend_dir is not None else "triton_ids",
        )

    def _warmup(self) -> Iterator[HttpProbe]:
        """Whole answers through the entry, which warm what stands before and behind the engine too."""
        limit = self._engine.limits().get("max_input_len", generative.WARMUP_WORDS[0] * generative.TOKENS_PER_WORD)
        for words in generative.WARMUP_WORDS:
            if words * generative.TOKENS_PER_WORD <= limit:
                asked = {"text_input": generative.text(words), "max_tokens": generative.WARMUP_TOKENS}
                body = {**asked, "bad_words": "", "stop_words": "", "top_k": 1, "stream": False}
                path = f"/v2/models/{self._engine.entry}/generate"
                yield HttpProbe(path, "POST", body, timeout_s=generative.WARMUP_TIMEOUT_S)

    def _notes(self) -> Iterator[str]:
        service = self.context.service
        yield "it can't be drained: what is in flight ends within its exit time-out when it stops"
        yield from notes_of(service)
        if service.engine is None:
            yield from (f"{each.model}: {each.what}" for each in self._repository_faults() if not each.blocks)
            return
        if self.given.backend_dir is None:
            yield "without 'options: {backend_dir: …}' it takes and gives token ids: /v2/models/tensorrt_llm"
        if release(self.context) is None:
            yield "which TensorRT-LLM serves is not known: 'environments.NAME.versions: {tensorrt-llm: V}' says it"
        if "kv_cache_free_gpu_mem_fraction" not in self._engine.settings():
            yield "its memory need is not known: the KV cache takes the back end's own share of what is free (0.9)"
        if not self.assignment.device_uuids:
            yield "the plan gives it no GPU, and TensorRT-LLM needs one"
        if self.context.service.world_size > 1 and self._in_container:
            yield "ranks in a container are not pinned one by one: they share its CPUs"


_CLOSED = (
    *("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--log-info=false"),
    *("--model-control-mode=explicit", f"--load-model={INNER}"),
)


def _probe(request: HttpRequest) -> HttpProbe:
    return HttpProbe(
        request.path, request.method, request.body, expect_status=request.status, expect_text=request.contains
    )
