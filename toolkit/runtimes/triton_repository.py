"""A model repository for Triton's TensorRT-LLM back end, as files; and what is wrong with one that is there. Pure.

Source: triton-inference-server/common model_config.proto; tensorrtllm_backend docs/model_config.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from toolkit.runtimes import pbtxt
from toolkit.runtimes.pbtxt import Message, Word

INNER, ENSEMBLE, BLS = "tensorrt_llm", "ensemble", "tensorrt_llm_bls"
BACKENDS = ("tensorrtllm",)
CONFIG = "config.pbtxt"
# Triton wants a version folder even where a model has no file in it.
KEEP = ".keep"
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
# Prompts of these lengths, as far as the engine takes them. A length is stored as bytes that are ASCII, since files of
# a launch are text: none of them has a byte over 127.
WARMUP_LENGTHS = (8, 64, 288, 1024, 4096)
WARMUP_TOKENS = 4
WARMUP_ID = 100

_INPUTS: tuple[tuple[str, str, bool], ...] = (
    ("end_id", "TYPE_INT32", True),
    ("pad_id", "TYPE_INT32", True),
    ("beam_width", "TYPE_INT32", True),
    ("temperature", "TYPE_FP32", True),
    ("runtime_top_k", "TYPE_INT32", True),
    ("runtime_top_p", "TYPE_FP32", True),
    ("len_penalty", "TYPE_FP32", True),
    ("repetition_penalty", "TYPE_FP32", True),
    ("min_length", "TYPE_INT32", True),
    ("presence_penalty", "TYPE_FP32", True),
    ("frequency_penalty", "TYPE_FP32", True),
    ("random_seed", "TYPE_UINT64", True),
    ("return_log_probs", "TYPE_BOOL", True),
    ("stop", "TYPE_BOOL", False),
    ("streaming", "TYPE_BOOL", False),
)


@dataclass(frozen=True)
class Serving:
    """How the inner model is served.

    ``devices``: how many the process sees, counted from 0. ``settings``: parameters of the back end by name.
    ``warmup_lengths``: of prompts, in tokens.
    """

    engine_dir: str
    devices: int
    max_batch_size: int
    settings: Mapping[str, str]
    warmup_lengths: Sequence[int] = ()

    @property
    def parameters(self) -> dict[str, str]:
        """Every parameter, those that always hold among them."""
        return {
            "gpt_model_type": "inflight_fused_batching",
            "gpt_model_path": self.engine_dir,
            # Which GPUs an instance group names is ignored by this back end: this is what it reads.
            "gpu_device_ids": ",".join(map(str, range(self.devices))),
            "exclude_input_in_output": "true",
            "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
            **self.settings,
        }


def inner_alone(serving: Serving) -> dict[str, str]:
    """The files of a repository that holds the inner model only: it takes and gives token ids."""
    batch = serving.max_batch_size
    config: dict[str, Any] = {
        "name": INNER,
        "backend": BACKENDS[0],
        "max_batch_size": batch,
        "model_transaction_policy": {"decoupled": True},
        "dynamic_batching": {"preferred_batch_size": [batch], "max_queue_delay_microseconds": 0},
        "input": list(_inputs()),
        "output": [
            {"name": "output_ids", "data_type": Word("TYPE_INT32"), "dims": [-1, -1]},
            {"name": "sequence_length", "data_type": Word("TYPE_INT32"), "dims": [-1]},
        ],
    }
    return _inner_files(config, serving)


def _inputs() -> Iterator[dict[str, Any]]:
    scalar = {"dims": [1], "reshape": {"shape": []}}
    yield {"name": "input_ids", "data_type": Word("TYPE_INT32"), "dims": [-1], "allow_ragged_batch": True}
    yield {"name": "input_lengths", "data_type": Word("TYPE_INT32"), **scalar}
    yield {"name": "request_output_len", "data_type": Word("TYPE_INT32"), "dims": [1]}
    for name, kind, reshaped in _INPUTS:
        shape: dict[str, Any] = scalar if reshaped else {"dims": [1]}
        yield {"name": name, "data_type": Word(kind), **shape, "optional": True}


def from_templates(
    templates: Mapping[PurePosixPath, str], serving: Serving, values: Mapping[str, str], entry: str
) -> dict[str, str]:
    """The files of a repository made of the back end's own templates: tokenizing, the inner model, and ``entry``.

    ``values`` fill their placeholders; what is left unfilled inside a text means "not set" to the back end.

    Raises: ValueError that names file and line of what cannot be filled or read.
    """
    made: dict[str, str] = {}
    for path, text in templates.items():
        model = path.parts[0]
        if model not in ("preprocessing", "postprocessing", INNER, entry):
            continue
        if path.name != CONFIG:
            made[str(path)] = text
        elif model == INNER:
            made |= _inner_files(_filled(path, text, values), serving)
        else:
            made[str(path)] = _pbtxt(_filled(path, text, values))
            made[f"{model}/1/{KEEP}"] = ""
    return made


def _filled(path: PurePosixPath, text: str, values: Mapping[str, str]) -> Message:
    def value(match: re.Match[str]) -> str:
        found = values.get(match[1])
        return match[0] if found is None else found.replace("\\", "\\\\").replace('"', '\\"')

    try:
        return pbtxt.read(_PLACEHOLDER.sub(value, text))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _inner_files(config: Mapping[str, Any], serving: Serving) -> dict[str, str]:
    """The inner model's configuration with this serving's settings, and the data that warms it."""
    kept = [each for each in config.get("parameters", []) if key_of(each) not in serving.parameters]
    ours = [{"key": key, "value": {"string_value": value}} for key, value in serving.parameters.items()]
    whole = {
        **config,
        "instance_group": [{"count": 1, "kind": Word("KIND_CPU")}],
        "parameters": [*kept, *ours],
        "model_warmup": [_sample(length) for length in serving.warmup_lengths],
    }
    files = {f"{INNER}/{CONFIG}": _pbtxt(whole), f"{INNER}/1/{KEEP}": ""}
    for length in serving.warmup_lengths:
        files[f"{INNER}/warmup/ids_{length}"] = int32(WARMUP_ID) * length
        files[f"{INNER}/warmup/length_{length}"] = int32(length)
    if serving.warmup_lengths:
        files[f"{INNER}/warmup/output_length"] = int32(WARMUP_TOKENS)
    return files


def _sample(length: int) -> dict[str, Any]:
    def tensor(name: str, dims: Sequence[int], file: str) -> dict[str, Any]:
        value = {"data_type": Word("TYPE_INT32"), "dims": list(dims), "input_data_file": file}
        return {"key": name, "value": value}

    inputs = [
        tensor("input_ids", [length], f"ids_{length}"),
        tensor("input_lengths", [1], f"length_{length}"),
        tensor("request_output_len", [1], "output_length"),
    ]
    return {"name": f"prompt of {length} tokens", "batch_size": 1, "inputs": inputs}


def int32(number: int) -> str:
    """The number as four bytes, lowest first, in a text of which each character is one byte.

    Raises: ValueError when one of them is no ASCII.
    """
    return number.to_bytes(4, "little").decode("ascii")


def warmup_lengths(max_input_len: int | None) -> tuple[int, ...]:
    """Lengths of prompts that the engine takes; without a known limit the shortest only."""
    limit = max_input_len if max_input_len is not None else WARMUP_LENGTHS[0]
    return tuple(length for length in WARMUP_LENGTHS if length <= limit)


def _pbtxt(config: Mapping[str, Any]) -> str:
    return "# Written by coexist at each start; change the deployment instead.\n" + pbtxt.write(config)


def key_of(entry: Message) -> str:
    """The key of an entry of a map."""
    return str(next(iter(entry.get("key", ())), ""))


@dataclass(frozen=True)
class Fault:
    """Something in a model's configuration that does not do what it says. ``blocks``: it would be served wrongly."""

    model: str
    what: str
    hint: str
    blocks: bool


def lint(model: str, config: Message, devices: int) -> Iterator[Fault]:
    """What is wrong with a model of a repository, when its process sees so many devices."""
    backend = str(next(iter(config.get("backend", ())), ""))
    groups = config.get("instance_group", ())
    named = {key_of(each): _text(each) for each in config.get("parameters", ())}
    ids = named.get("gpu_device_ids", "")
    if backend in BACKENDS and any(group.get("gpus") for group in groups) and not ids:
        what = "instance_group names 'gpus', which the TensorRT-LLM back end ignores: it would take every GPU it sees"
        yield Fault(model, what, "Write the parameter gpu_device_ids, and 'kind: KIND_CPU' in instance_group.", True)
    beyond = [each for each in re.findall(r"\d+", ids) if int(each) >= devices]
    if beyond and "${" not in ids:
        what = f"gpu_device_ids names device {', '.join(beyond)}, and the service has {devices} (counted from 0)"
        yield Fault(model, what, "Count the service's own GPUs from 0, or ask for more with 'gpus'.", True)
    if config.get("model_warmup") and (config.get("ensemble_scheduling") or config.get("platform") == ["ensemble"]):
        what = "model_warmup of an ensemble is ignored, or keeps it from loading"
        yield Fault(model, what, "Put it on the inner model.", False)


def _text(entry: Message) -> str:
    value: Any = next(iter(entry.get("value", ())), None)
    return str(next(iter(value.get("string_value", ())), "")) if isinstance(value, Mapping) else ""
