"""``options:`` of a Triton service: flags of the server, parameters of its TensorRT-LLM back end, coexist's own. Pure.

Source: triton-inference-server/server src/command_line_parser.cc; tensorrtllm_backend docs/model_config.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.names import suggestion
from toolkit.runtimes import options
from toolkit.runtimes.options import Option
from toolkit.runtimes.triton_repository import BLS, ENSEMBLE

SERVER = {
    "log_verbose": Option("--log-verbose", "count"),
    "http_thread_count": Option("--http-thread-count", "count"),
    "model_load_thread_count": Option("--model-load-thread-count", "count"),
    "buffer_manager_thread_count": Option("--buffer-manager-thread-count", "count"),
    "pinned_memory_pool_byte_size": Option("--pinned-memory-pool-byte-size", "count"),
}
PORTS = ("grpc_port", "metrics_port")
ENTRIES = {"ensemble": ENSEMBLE, "bls": BLS}
OWN = ("backend_dir", "entry", "fill", "max_batch_size", *PORTS)
_TRUTHS = (
    *("enable_kv_cache_reuse", "enable_chunked_context", "multi_block_mode", "cuda_graph_mode"),
    *("enable_context_fmha_fp32_acc", "normalize_log_probs"),
)
_COUNTS = (
    *("max_tokens_in_paged_kv_cache", "max_beam_width", "max_attention_window_size", "sink_token_length"),
    *("kv_cache_host_memory_bytes", "cancellation_check_period_ms", "cuda_graph_cache_size"),
)
_FRACTIONS = ("kv_cache_free_gpu_mem_fraction",)
_CHOICES = {
    "batch_scheduler_policy": ("guaranteed_no_evict", "max_utilization"),
    "decoding_mode": ("top_k", "top_p", "top_k_top_p", "beam_search", "medusa", "redrafter", "lookahead", "eagle"),
}
PARAMETERS = (*_TRUTHS, *_COUNTS, *_FRACTIONS, *_CHOICES)
# The plan decides over these; in options they would silently win.
PLANNED = {
    "gpu_device_ids": "The plan says which GPUs it takes; ask with 'gpus'.",
    "gpt_model_path": "It serves 'engine'.",
    "http_port": "Write 'port' of the service.",
    "model_repository": "Write 'model: PATH' for a repository of your own.",
    "shm_region_prefix_name": "Each instance has a prefix of its own already.",
}


@dataclass(frozen=True)
class Given:
    """What the options say.

    ``words``: flags of tritonserver. ``settings``: parameters of the back end, as texts. ``ports``: more that it
    listens on, by option. ``fill``: values for the templates in ``backend_dir``.
    """

    words: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    backend_dir: Path | None = None
    entry: str = ENSEMBLE
    fill: Mapping[str, str] = field(default_factory=dict)
    max_batch_size: int | None = None


def read(name: str, written: Mapping[str, Any]) -> Given:
    """The options of a service.

    Raises: ManyFaultsError with each that Triton or its back end does not have, or whose value they would refuse.
    """
    faults = tuple(fault for key, value in written.items() if (fault := _fault(name, key, value)))
    if faults:
        raise ManyFaultsError(faults)
    folder = written.get("backend_dir")
    return Given(
        words=options.argv(name, {key: value for key, value in written.items() if key in SERVER}, SERVER),
        settings={key: _text(value) for key, value in written.items() if key in PARAMETERS},
        ports={key: written[key] for key in PORTS if key in written},
        backend_dir=Path(folder) if folder is not None else None,
        entry=ENTRIES[written.get("entry", "ensemble")],
        fill={str(key): _text(value) for key, value in written.get("fill", {}).items()},
        max_batch_size=written.get("max_batch_size"),
    )


def _fault(name: str, key: str, value: Any) -> ToolkitError | None:
    where = f"services.{name}.options.{key}"
    if key in PLANNED:
        return ToolkitError(f"'{key}' can't be set here", where, PLANNED[key], code="planned")
    if key not in (*SERVER, *PARAMETERS, *OWN):
        hint = suggestion(key, (*SERVER, *PARAMETERS, *OWN))
        return ToolkitError(f"unknown option '{key}'", where, hint, code="unknown_option")
    wrong = next(_wrong(key, value), None)
    return None if wrong is None else ToolkitError(f"{value!r:.80} is {wrong}", where, code="bad_option")


def _wrong(key: str, value: Any) -> Iterator[str]:
    """What a value is not; nothing when it is right, or ``options.argv`` judges it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key in _TRUTHS and not isinstance(value, bool):
        yield "neither true nor false"
    if key in (*_COUNTS, "max_batch_size") and not (type(value) is int and value >= 1):
        yield "no whole number from 1"
    if key in PORTS and not (type(value) is int and 1 <= value <= 65535):
        yield "no port (1 to 65535)"
    if key in _FRACTIONS and not (number and 0 < value <= 1):
        yield "no fraction between 0 and 1"
    choices = {**_CHOICES, "entry": tuple(ENTRIES)}
    if key in choices and value not in choices[key]:
        yield f"none of {', '.join(choices[key])}"
    if key == "backend_dir" and not (isinstance(value, str) and Path(value).is_absolute()):
        yield "no absolute path of a folder with the back end's templates (its inflight_batcher_llm)"
    if key == "fill" and not (
        isinstance(value, dict) and all(isinstance(each, (str, int, float)) for each in value.values())
    ):
        yield "no mapping of a template's placeholders to values"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
