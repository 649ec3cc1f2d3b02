"""An engine of TensorRT-LLM as Triton serves it: what may be switched on, and its repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from toolkit.config.models import Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.runtimes import generative, knobs, trtllm_built
from toolkit.runtimes import triton_repository as repository
from toolkit.runtimes.base import Assignment, Context
from toolkit.runtimes.triton_options import Given
from toolkit.runtimes.triton_repository import CONFIG, INNER, Serving
from toolkit.runtimes.trtllm_guards import CHUNKED_PREFILL, DRAFT_TOKENS, KV_REUSE, refused_features

DEFAULT_BATCH = 8
NONE = dict.fromkeys((KV_REUSE, CHUNKED_PREFILL, DRAFT_TOKENS), False)
MAX_TEMPLATE_BYTES = 4 << 20
_FILLED = {
    "triton_backend": "tensorrtllm",
    "decoupled_mode": "true",
    "max_queue_delay_microseconds": "0",
    "max_queue_size": "0",
    "batching_strategy": "inflight_fused_batching",
    "encoder_input_features_data_type": "TYPE_FP16",
    "logits_datatype": "TYPE_FP32",
    "prompt_embedding_table_data_type": "TYPE_FP16",
    "accumulate_tokens": "false",
    "skip_special_tokens": "true",
    "add_special_tokens": "true",
}


@dataclass(frozen=True)
class Engine:
    """The engine of a service; ``given``: its options."""

    context: Context
    assignment: Assignment
    given: Given

    def files(self, folder: Path) -> dict[Path, str]:
        """The repository of the engine in ``folder``.

        Raises: ManyFaultsError when the engine cannot be served so; ToolkitError for templates that cannot be filled.
        """
        self._check()
        serving = self._serving()
        if self.given.backend_dir is None:
            made = repository.inner_alone(serving)
        else:
            made = self._from_templates(self.given.backend_dir, serving)
        return {folder / path: text for path, text in made.items()}

    @property
    def entry(self) -> str:
        """The model that requests go to."""
        return self.given.entry if self.given.backend_dir is not None else INNER

    def _from_templates(self, folder: Path, serving: Serving) -> dict[str, str]:
        where = f"services.{self.context.name}.options.backend_dir"
        if not folder.is_dir() and self.context.engine_manifest is None:
            return {}  # a plan for another machine
        templates = _read_templates(folder, where)
        models = ("preprocessing", "postprocessing", INNER, self.entry)
        if missing := [name for name in models if PurePosixPath(name, CONFIG) not in templates]:
            what = f"'{folder}' has no {missing[0]}/{CONFIG}"
            hint = "Name the folder inflight_batcher_llm of the back end, of the release that serves."
            raise ToolkitError(what, where, hint, code="no_templates")
        try:
            return repository.from_templates(templates, serving, self._values(serving), self.entry)
        except ValueError as error:
            hint = "Write what it lacks under 'options: {fill: {NAME: VALUE}}'."
            raise ToolkitError(f"{folder}/{error}", where, hint, code="template") from error

    def _values(self, serving: Serving) -> dict[str, str]:
        """What the templates of all releases ask for. Source: tensorrtllm_backend docs/model_config.md."""
        batch = str(serving.max_batch_size)
        return {
            **_FILLED,
            "triton_max_batch_size": batch,
            "preprocessing_instance_count": "1",
            "postprocessing_instance_count": "1",
            "bls_instance_count": batch,
            "engine_dir": serving.engine_dir,
            "tokenizer_dir": str(self._tokenizer()),
            **self.given.fill,
        }

    def _tokenizer(self) -> Path:
        found = self.context.model_dir or self.context.tokenizer_dir
        if found is None:
            raise ToolkitError(
                "nothing says where the engine's tokenizer is",
                f"services.{self.context.name}.model",
                "Write 'model: FOLDER' (Hugging Face's format) here, or 'model' in the engine's recipe.",
                code="no_tokenizer",
            )
        return found

    def _serving(self) -> Serving:
        limits = self.limits()
        batch = self.given.max_batch_size or limits.get("max_batch_size", DEFAULT_BATCH)
        if batch > limits.get("max_batch_size", batch):
            what = f"max_batch_size {batch} is over the engine's own, {limits['max_batch_size']}"
            raise ToolkitError(what, f"services.{self.context.name}.options.max_batch_size", code="limits")
        lengths = {"none": 0, "single": 1, "full": None}[self.context.service.warmup]
        return Serving(
            engine_dir=str(self.context.engine_dir),
            devices=max(1, len(self.assignment.device_uuids)),
            max_batch_size=batch,
            settings=self.settings(),
            warmup_lengths=repository.warmup_lengths(limits.get("max_input_len"))[:lengths],
        )

    def settings(self) -> dict[str, str]:
        """The back end's parameters: reuse as the recipe says and the engine can, memory as the ledger says."""
        recipe, able = self.context.recipe, self._able()
        reuse = recipe is not None and recipe.kv_cache.reuse and (able or NONE).get(KV_REUSE, False)
        tokens = generative.least(knobs.trtllm_max_tokens(each) for each in self.assignment.memory)
        shares = (knobs.trtllm_free_fraction(each, capped=tokens is not None) for each in self.assignment.memory)
        fraction = generative.least(shares)
        memory = {"max_tokens_in_paged_kv_cache": tokens, "kv_cache_free_gpu_mem_fraction": fraction}
        return {
            "batch_scheduler_policy": "guaranteed_no_evict",
            "enable_kv_cache_reuse": str(reuse).lower(),
            "enable_chunked_context": "false",
            **{key: f"{value:g}" if key.endswith("fraction") else str(value) for key, value in memory.items() if value},
            **self.given.settings,
        }

    def limits(self) -> dict[str, int]:
        """What the engine takes."""
        told, recipe = self.context.engine_manifest or {}, self.context.recipe
        built = told.get("limits")
        own = recipe.limits.model_dump() if recipe is not None else {}
        return {**own, **(built if isinstance(built, Mapping) else {})}

    def _able(self) -> Mapping[str, bool] | None:
        """What may be switched on; None: nothing says what the engine can."""
        told, recipe = self.context.engine_manifest or {}, self.context.recipe
        unfused = recipe is not None and recipe.fmha == "disable"
        return told.get("features") or (NONE if unfused else None)

    def _check(self) -> None:
        where, service = f"services.{self.context.name}", self.context.service
        told, recipe = self.context.engine_manifest or {}, self.context.recipe
        if recipe is not None and recipe.builder != "trtllm":
            what = f"runtime 'triton' serves engines of 'builder: trtllm', not of '{recipe.builder}'"
            raise ToolkitError(what, f"{where}.engine", f"Write 'runtime: {recipe.builder}'.", code="unsupported")
        faults = [*_release_faults(told, self.context, where), *_size_faults(told, service, where)]
        faults += trtllm_built.fmha_faults(self.context, told)
        able = self._able()
        faults += refused_features(able, service.options, f"{where}.options") if able is not None else ()
        if faults:
            raise ManyFaultsError(tuple(faults))


def _read_templates(folder: Path, where: str) -> dict[PurePosixPath, str]:
    """The text files of the templates, by path below the folder; compiled Python is left out."""
    found: dict[PurePosixPath, str] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or "__pycache__" in path.parts:
            continue
        try:
            if path.stat().st_size <= MAX_TEMPLATE_BYTES:
                found[PurePosixPath(path.relative_to(folder).as_posix())] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ToolkitError(f"'{path}' cannot be read: {error}", where, code="template") from error
    return found


def release(context: Context) -> str | None:
    """The TensorRT-LLM that serves, as installed or declared."""
    return context.program.packages.get("tensorrt-llm") if context.program is not None else None


def _release_faults(told: Mapping[str, Any], context: Context, where: str) -> Iterator[ToolkitError]:
    built, serves = trtllm_built.release(told), release(context)
    if built is not None and serves is not None and built != trtllm_built.public(serves):
        yield ToolkitError(
            f"the engine was built by TensorRT-LLM {built}, and the back end of {serves} is to serve it",
            f"{where}.environment",
            "Build it with the release of the back end, or use the image of the engine's release.",
            code="release_differs",
        )


def _size_faults(told: Mapping[str, Any], service: Service, where: str) -> Iterator[ToolkitError]:
    for key in ("tp_size", "pp_size"):
        built, asked = told.get(key), getattr(service, key)
        if isinstance(built, int) and built != asked:
            what = f"its engine is built for {key} {built}, the service has {key} {asked}"
            yield ToolkitError(what, f"{where}.{key}", f"Write '{key}: {built}'.", code="world_size")
