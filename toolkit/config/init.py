"""A first deployment for a machine, with comments, to start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from toolkit.errors import ToolkitError
from toolkit.files import publish
from toolkit.host.model import Host
from toolkit.units import GIB, MIB, format_bytes, format_cpu_list

# What a first deployment names, as it lies in a checkout of coexist.
SAMPLES = {
    "recipe": "engines/smollm2-135m.yaml",
    "trtllm_recipe": "engines/llama-3.1-8b.yaml",
    "encoder": "models/all-minilm-l6-v2",
}
LLM_SHARE, EMBED_SHARE = 0.6, 0.15  # of a shared GPU; the rest is for two CUDA contexts and for peaks

_HEAD = """\
# A deployment for coexist: what runs together on this machine.
# {machine}
#
#   coexist plan {{file}}    who gets which GPUs, memory, cores and ports; changes nothing
#   coexist up {{file}}      check, build, start, warm; ready when every service is
#
# Every key: 'coexist schema deployment'. Paths are looked for beside this file, then in the folder above it.
version: 1
name: first
"""

_NO_GPU = """
engines:
  llm: {{recipe: {recipe}}}   # how it is built; any local Llama-family model folder works

services:
  llm:
    runtime: torch                  # coexist's own server for engines of 'builder: torch'
    engine: llm
    port: 8001
    canary: {{prompt: "The capital of France is", max_tokens: 8, expected: " Paris"}}   # READY needs this answer

  embed:
    runtime: flash                  # coexist's own PyTorch server; without a GPU its attention is sdpa
    model: {encoder}  # a Hugging Face folder of a BERT-family encoder
    port: 8002
    # cpus: 1                       # a number of CPUs of its own, or a list such as '0-3'; default: an even share
    # after: [llm]                  # start only when llm is SERVING
"""

_ENVIRONMENTS = """
environments:                       # one Python environment per role that needs its own
  trtllm: {{python: /opt/trtllm/bin/python}}   # the interpreter of the environment with TensorRT-LLM
  flash: {{python: /opt/flash/bin/python}}     # the one with PyTorch and FlashAttention

engines:
  llm: {{recipe: {trtllm_recipe}, environment: trtllm}}   # how it is built: 'coexist schema recipe'
"""

_GPU_SERVICES = """
services:
  llm:
    runtime: trtllm                 # or vllm, sglang, transformers with 'model: PATH' instead of 'engine'
    engine: llm
    environment: trtllm
{llm_gpus}
    port: 8001
    canary: {{prompt: "The capital of France is", max_tokens: 8, expected: " Paris"}}   # READY needs this answer

  embed:
    runtime: flash                  # PyTorch server whose attention is FlashAttention
    model: {encoder}  # a Hugging Face folder of a BERT-family encoder
    environment: flash
    attention: auto                 # fa4 | fa3 | fa2 | sdpa, picked for the GPU
{embed_gpus}
    port: 8002
    # after: [llm]                  # start only when llm is SERVING
"""


def render(host: Host, name_of: Callable[[str], str] = str) -> str:
    """The text of a first deployment: by CPU, on one shared GPU, or on several.

    A GPU in MIG mode counts as its slices. ``name_of``: how the file is to name a recipe or model of ``SAMPLES``.
    """
    devices = _device_bytes(host)
    head = _HEAD.format(machine=_machine(host, devices)).replace("{file}", "FILE")
    samples = {key: name_of(path) for key, path in SAMPLES.items()}
    if not devices:
        return head + _NO_GPU.format(**samples)
    llm, embed = _one_gpu(devices[0]) if len(devices) == 1 else _several_gpus(len(devices))
    services = _GPU_SERVICES.format(llm_gpus=_indented(llm), embed_gpus=_indented(embed), **samples)
    return head + _ENVIRONMENTS.format(**samples) + services


def write(path: Path, text: str) -> None:
    """Publishes ``text`` as a new file, whole or not at all.

    Raises: ToolkitError when something is there already, or the folder is missing or not writable.
    """
    try:
        publish(path, text.encode(), 0o644, replace=False)
    except FileExistsError as error:
        raise ToolkitError("exists already and is not overwritten", str(path), "Name another file.") from error
    except OSError as error:
        raise ToolkitError(f"cannot be written: {error.strerror}", str(path), "Check the folder.") from error


def _device_bytes(host: Host) -> list[int | None]:
    devices: list[int | None] = []
    for gpu in host.gpus:
        devices += [gpu.memory_bytes] if gpu.mig is None else [slice_.memory_bytes for slice_ in gpu.mig]
    return devices


def _machine(host: Host, devices: list[int | None]) -> str:
    cpus = f"CPUs {format_cpu_list(host.cpus_allowed)}"
    if not devices:
        return f"Written for: {cpus}, no GPU."
    names = ", ".join(dict.fromkeys(" ".join((gpu.name or "unknown GPU").split()) for gpu in host.gpus))
    memory = f", {format_bytes(devices[0])} each" if devices[0] else ""
    return f"Written for: {cpus}; {len(devices)} x {names}{memory}."


def _one_gpu(memory_bytes: int | None) -> tuple[list[str], list[str]]:
    share = "gpus: {count: 1, share: true}   # both services live on one GPU"
    return [share, _memory_line(memory_bytes, LLM_SHARE)], [share, _memory_line(memory_bytes, EMBED_SHARE)]


def _memory_line(memory_bytes: int | None, share: float) -> str:
    comment = "# without the CUDA context"
    if memory_bytes is None:
        return f"# gpu_memory: 4GiB              {comment}; this GPU's memory is unknown"
    size_bytes = int(memory_bytes * share)
    size = f"{size_bytes // GIB}GiB" if size_bytes >= GIB else f"{size_bytes // MIB}MiB"
    return f"gpu_memory: {size:<19} {comment}"


def _several_gpus(count: int) -> tuple[list[str], list[str]]:
    tp_size = 1 << ((count - 1).bit_length() - 1)  # the largest power of two that leaves one GPU for embed
    # An engine is divided when it is built.
    also = "                      # write the same in the recipe" if tp_size > 1 else ""
    llm = [f"gpus: {tp_size}", f"tp_size: {tp_size}{also}", "nvlink: preferred               # or required"]
    return llm, ["gpus: 1"]


def _indented(lines: list[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
