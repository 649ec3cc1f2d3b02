"""Each rule has a case that it must speak of and one, as near as can be, where it must be silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compat.builders import (
    FACTS,
    SITE,
    binaries,
    binary,
    case,
    code,
    findings,
    gpu,
    host,
    service,
    view,
)
from toolkit.compat import book, cases, judge
from toolkit.compat.model import (
    Cache,
    Case,
    EngineFolder,
    Lock,
    ModelFolder,
    Mpi,
    Mps,
    PortHolder,
    Surroundings,
    TritonModel,
)
from toolkit.config.models import Recipe
from toolkit.environments.binaries import DriverLibrary
from toolkit.environments.linking import Library, Unresolved
from toolkit.environments.mismatch import Mismatch
from toolkit.environments.model import Conflict, Problem
from toolkit.host.model import ContainerLimits, Core, Holder, MigDevice, NumaNode

GUILTY = SITE / "flash_attn_2_cuda.so"
OLD = Unresolved(GUILTY, "_ZN3c105ErrorC2ENS_14SourceLocationESs", None)


def with_file(*mismatches: Mismatch, packages: dict[str, str | None] | None = None, **changes: Any) -> Case:
    found = {"torch": "2.4.0", "flash-attn": "2.6.3", "transformers": "4.42.0"} if packages is None else packages
    return case(view("flash", found, binaries=binaries(binary(*mismatches)), **changes))


def versions(**packages: str) -> Case:
    named = {name.replace("_", "-"): version for name, version in packages.items() if name != "gpu"}
    return cases.what_if(FACTS, named, packages.get("gpu", "sm_90"))


def config(version: str = "0.12.0", world: int = 1, **parts: Any) -> dict[str, Any]:
    return {
        "version": version,
        "pretrained_config": {
            "mapping": {"world_size": world, "tp_size": world, "pp_size": 1},
            "num_attention_heads": 32,
            "hidden_size": 4096,
            "quantization": parts.get("quantization", {}),
            **parts.get("pretrained", {}),
        },
        "build_config": {
            "max_batch_size": 8,
            "max_input_len": 1024,
            "max_seq_len": 2048,
            "plugin_config": {"context_fmha": True, "use_paged_context_fmha": True, **parts.get("plugins", {})},
            **parts.get("build", {}),
        },
    }


def engine(found: dict[str, Any] | None = None, **changes: Any) -> Surroundings:
    folder = EngineFolder("llm", Path("/engines/llm"), found or config(), ranks={"rank0.engine": 9})
    rows = {**{key: getattr(folder, key) for key in folder.__dataclass_fields__}, **changes}
    return Surroundings(engines={"llm": EngineFolder(**rows)})


def serving(
    around: Surroundings, on: Any = None, packages: dict[str, str | None] | None = None, **changes: Any
) -> Case:
    return case(view(packages=packages), services={"llm": service(**changes)}, on=on, around=around)


def plain(**changes: Any) -> Case:
    return case(services={"llm": service(**changes)})


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({"version": 1, "name": "llm", "builder": "trtllm", "checkpoint": "x", **changes})


def built(told: dict[str, Any] | None = None, **changes: Any) -> Case:
    """A service of TensorRT-LLM whose engine is still to be built; ``told``: keys of the service."""
    return serving(Surroundings(recipes={"llm": recipe(**changes)}), **(told or {}))


def shadow(via: Any) -> Case:
    library = Library("libcudart.so.12", GUILTY, Path("/usr/local/cuda/lib64/libcudart.so.12"), via, SITE / "nvidia/x")
    return case(view("flash", {"torch": "2.4.0"}, binaries=binaries(binary(libraries=(library,)))))


def compat_driver(version: str) -> Case:
    found = Library("libcuda.so.1", Path(), Path("/usr/local/cuda/compat/libcuda.so.1"), "cache")
    return case(view(binaries=binaries(driver=DriverLibrary(found, version, True, "590.44.01"))))


def gpu_code(*archs: int) -> Case:
    files = binaries(binary(code=code(*archs)))
    return case(view("flash", {"torch": "2.7.0"}, binaries=files, torch_cuda="12.8"), on=host(gpu(sm="12.0")))


def sharing(budget: str | None) -> Case:
    shared = {"gpus": {"count": 1, "share": True}, "model": "m"}
    one, other = service("vllm", **shared, gpu_memory=budget), service("vllm", **shared, gpu_memory="4GiB")
    return case(services={"a": one, "b": other})


def coherent(*allowed: int) -> Case:
    """A host whose GPU has its memory as node 2, with a cpuset that allows these nodes."""
    nodes = (NumaNode(node=0, cpus=(0,)), NumaNode(node=2, cpus=()))
    return case(on=host(gpu(gpu_numa_id=2), numa=nodes, mems_allowed=allowed))


def shared_out(tp_size: int) -> Case:
    model = ModelFolder(Path("/models/qwen"), config={"num_attention_heads": 28})
    services = {"llm": service("vllm", tp_size=tp_size, gpus=tp_size)}
    return case(services=services, around=Surroundings(models={"llm": model}))


def long_model(wanted: int) -> Case:
    model = ModelFolder(Path("/m"), config={"max_position_embeddings": 4096})
    services = {"v": service("vllm", model="m", options={"max_model_len": wanted})}
    return case(services=services, around=Surroundings(models={"v": model}))


def unpaged(**options: bool) -> Case:
    return serving(engine(config(plugins={"use_paged_context_fmha": False})), options=options)


def lock(held: bool | None, boot: bool) -> Surroundings:
    return Surroundings(locks=(Lock(Path("/c/lock"), 9999.0, held, boot),))


def triton(**changes: Any) -> Surroundings:
    rows = {
        "backend": "tensorrtllm",
        "platform": None,
        "instance_gpus": False,
        "gpu_device_ids": False,
        "warmup": False,
    }
    return Surroundings(triton=(TritonModel(Path("/m/config.pbtxt"), **{**rows, **changes}),))


MIG = (MigDevice(uuid="MIG-1", index=0, profile="1g", memory_bytes=1 << 30),)
VOLTA = host(gpu(sm="7.0"))
SUPPRESSED = {"torch": "2.4.0", "tensorrt-llm": "0.12.0", "transformers": "4.42.0"}
MODEL = ModelFolder(Path("/m"), weights_bytes=100 << 30)

# id: what must be found, and what must not.
CASES: dict[str, tuple[Callable[[], Case], Callable[[], Case]]] = {
    "abi-torch-mismatch": (
        lambda: with_file(Mismatch("cxx11_abi", GUILTY, "torch", "old", "new", None, "symbols", (OLD,))),
        with_file,
    ),
    "mixed-install": (
        lambda: with_file(Mismatch("release", GUILTY, "tensorrt_llm", "tensorrt_llm::common::x()")),
        with_file,
    ),
    "tensorrt-library": (
        lambda: with_file(Mismatch("release", GUILTY, "tensorrt", "nvinfer1::x()")),
        lambda: with_file(Mismatch("release", GUILTY, "torch", "c10::x()")),
    ),
    "missing-library": (
        lambda: with_file(Mismatch("library_missing", GUILTY, "cuda", "libcudart.so.11.0")),
        with_file,
    ),
    "cuda-major": (lambda: with_file(Mismatch("cuda_major", GUILTY, "cuda", "13", "12")), with_file),
    "torch-without-cuda": (
        lambda: with_file(Mismatch("torch_without_cuda", GUILTY, "torch", "libc10_cuda.so")),
        with_file,
    ),
    "symbol-missing": (lambda: with_file(Mismatch("release", GUILTY, None, "foo()")), with_file),
    "library-too-old": (
        lambda: with_file(Mismatch("library_too_old", GUILTY, "libstdc++", "GLIBCXX_3.4.32", "/usr/lib/libstdc++.so")),
        with_file,
    ),
    "binary-damaged": (lambda: with_file(Mismatch("unreadable", GUILTY, None, "not an ELF file")), with_file),
    "driver-library-missing": (
        lambda: with_file(Mismatch("driver_missing", GUILTY, "cuda_driver", "libcuda.so.1")),
        with_file,
    ),
    "flash-attn-breaks-server": (
        lambda: with_file(Mismatch("cxx11_abi", GUILTY, "torch", "old", "new")),
        lambda: with_file(
            Mismatch("cxx11_abi", GUILTY, "torch", "old", "new"), packages={"torch": "2.4.0", "flash-attn": "2.6.3"}
        ),
    ),
    "shadowed-library": (lambda: shadow("ld_library_path"), lambda: shadow("runpath")),
    "cuda-compat-library": (lambda: compat_driver("550.54.15"), lambda: compat_driver("590.44.01")),
    "gpu-architecture": (lambda: gpu_code(80, 90), lambda: gpu_code(80, 90, 120)),
    "environment-broken": (
        lambda: case(view(problems=(Problem("base_interpreter_missing", "env"),))),
        lambda: case(view(problems=(Problem("uninstall_leftover", "~orch"),))),
    ),
    "environment-untidy": (
        lambda: case(view(problems=(Problem("uninstall_leftover", "~orch"),))),
        lambda: case(view(problems=(Problem("pth_import", "x.pth"),))),
    ),
    "environment-opaque": (
        lambda: case(view(problems=(Problem("interpreter_is_script", "python"),))),
        lambda: case(view(problems=(Problem("interpreter_missing", "python"),))),
    ),
    "environment-not-read": (lambda: case(view(packages={}, read=False)), case),
    "image-not-read": (lambda: case(view(packages={}, read=False, image="x:1")), case),
    "dependency-conflict": (
        lambda: case(view(conflicts=(Conflict("tensorrt-llm", "transformers<=4.42.4", "transformers", "4.45.0"),))),
        case,
    ),
    "roles-cannot-share": (
        lambda: case(
            view(packages=SUPPRESSED, requires={"tensorrt-llm": ("transformers<=4.42.4",)}),
            view("vllm", {"vllm": "0.8.0", "transformers": "4.51.0"}, requires={"vllm": ("transformers>=4.51",)}),
        ),
        lambda: case(
            view(packages=SUPPRESSED, requires={"tensorrt-llm": ("transformers<=4.42.4",)}),
            view("vllm", {"vllm": "0.8.0", "transformers": "4.42.0"}, requires={"vllm": ("transformers>=4.40",)}),
        ),
    ),
    "torch-prerelease": (
        lambda: case(view("ngc", {"torch": "2.5.0a0+872d972e41.nv24.08"})),
        lambda: case(view("release", {"torch": "2.5.0+cu124"})),
    ),
    "library-path-shared": (
        lambda: case(view(), view("b", {}), around=Surroundings(environ={"LD_LIBRARY_PATH": "/cuda"})),
        lambda: case(view(), around=Surroundings(environ={"LD_LIBRARY_PATH": "/cuda"})),
    ),
    "trtllm-torch": (lambda: case(view(packages={"tensorrt-llm": "0.12.0", "torch": "2.5.0"})), case),
    "trtllm-python": (
        lambda: versions(tensorrt_llm="1.1.0", python="3.9"),
        lambda: versions(tensorrt_llm="1.1.0", python="3.12"),
    ),
    "trtllm-tensorrt": (
        lambda: versions(tensorrt_llm="0.11.0", tensorrt="10.2.0"),
        lambda: versions(tensorrt_llm="0.11.0", tensorrt="10.1.0"),
    ),
    "trtllm-transformers": (
        lambda: versions(tensorrt_llm="1.0.0", transformers="4.55.0"),
        lambda: versions(tensorrt_llm="1.0.0", transformers="4.53.1"),
    ),
    "trtllm-cuda": (
        lambda: versions(tensorrt_llm="1.1.0", torch="2.9.0", cuda="12.8"),
        lambda: versions(tensorrt_llm="1.1.0", torch="2.9.0", cuda="13.0"),
    ),
    "trtllm-abi": (
        lambda: versions(tensorrt_llm="0.19.0", torch="2.6.0+cu126"),
        lambda: versions(tensorrt_llm="0.19.0", torch="2.6.0+cu124"),
    ),
    "trtllm-release-unknown": (lambda: versions(tensorrt_llm="0.11.1"), lambda: versions(tensorrt_llm="0.11.0")),
    "trtllm-fact-unknown": (
        lambda: versions(tensorrt_llm="0.18.1", torch="2.6.0"),
        lambda: versions(tensorrt_llm="0.17.0", torch="2.6.0"),
    ),
    "gpu-not-named": (
        lambda: cases.what_if(FACTS, {"tensorrt-llm": "0.12.0"}, None),
        lambda: versions(tensorrt_llm="0.12.0"),
    ),
    "package-facts-unknown": (
        lambda: versions(vllm="0.9.0", torch="2.7.0"),
        lambda: versions(torch="2.7.0", cuda="12.8"),
    ),
    "engine-mode-removed": (
        lambda: serving(engine(config("1.3.0rc21")), packages={"tensorrt-llm": "1.3.0rc21"}),
        lambda: serving(engine(config("1.3.0rc20")), packages={"tensorrt-llm": "1.3.0rc20"}),
    ),
    "flash-attn-release-unknown": (lambda: versions(flash_attn="2.6.2"), lambda: versions(flash_attn="2.6.3")),
    "flash-attn-no-wheel": (
        lambda: versions(flash_attn="2.5.8", torch="2.4.0"),
        lambda: versions(flash_attn="2.5.8", torch="2.3.1"),
    ),
    "flash-attn-requires": (
        lambda: versions(flash_attn="2.8.3", torch="2.1.0"),
        lambda: versions(flash_attn="2.8.3", torch="2.2.0"),
    ),
    "flash-attn-2-hides-4": (
        lambda: case(view("f", {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0b11"})),
        lambda: case(view("f", {"flash-attn-4": "4.0.0b11"})),
    ),
    "fused-attention-need": (
        lambda: versions(tensorrt_llm="0.12.0", flash_attn="2.6.3"),
        lambda: versions(tensorrt_llm="0.12.0"),
    ),
    "quoted-claim": (
        lambda: versions(tensorrt_llm="0.12.0", flash_attn="2.6.3"),
        lambda: versions(tensorrt_llm="0.12.0", flash_attn="2.5.8"),
    ),
    "unsure-facts": (lambda: versions(tensorrt_llm="0.14.0"), lambda: versions(flash_attn="2.6.3")),
    "flash-attention-architecture": (
        lambda: case(view("f", {"flash-attn": "2.6.3"}), on=host(gpu(sm="7.5"))),
        lambda: case(view("f", {"flash-attn": "2.6.3"}), on=host(gpu(sm="8.6"))),
    ),
    "gpu-support-unknown": (
        lambda: versions(tensorrt_llm="0.21.0", gpu="sm_120"),
        lambda: versions(tensorrt_llm="0.20.0", gpu="sm_120"),
    ),
    "driver-cuda-version": (
        lambda: case(view("f", {"torch": "2.9.0"}, torch_cuda="13.0"), on=host(driver_version="570.26")),
        lambda: case(view("f", {"torch": "2.9.0"}, torch_cuda="13.0"), on=host(driver_version="580.65.06")),
    ),
    "driver-minor-version": (
        lambda: case(view("f", {"torch": "2.7.0"}, torch_cuda="12.8"), on=host(driver_version="550.54.14")),
        lambda: case(view("f", {"torch": "2.7.0"}, torch_cuda="12.8"), on=host(driver_version="570.26")),
    ),
    "no-gpu": (
        lambda: case(services={"llm": service()}, on=host().model_copy(update={"gpus": ()})),
        lambda: case(services={"llm": service()}),
    ),
    "gpu-not-asked": (lambda: plain(gpus=0), lambda: plain(gpus=1)),
    "ranks-per-host": (lambda: plain(tp_size=2), lambda: plain(tp_size=1)),
    "mixed-gpu-order": (
        lambda: case(on=host(gpu(), gpu(1, "8.9", name="NVIDIA L40S"))),
        lambda: case(
            on=host(gpu(), gpu(1, "8.9", name="NVIDIA L40S")),
            around=Surroundings(environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ),
    ),
    "device-uuid-support": (
        lambda: case(view(packages={"vllm": "0.10.1"}), services={"v": service("vllm", model="m")}),
        lambda: case(view(packages={"vllm": "0.21.0"}), services={"v": service("vllm", model="m")}),
    ),
    "device-visible": (lambda: plain(gpus=[7]), lambda: plain(gpus=[0])),
    "compute-mode": (
        lambda: case(services={"llm": service()}, on=host(gpu(compute_mode="Prohibited"))),
        lambda: case(services={"llm": service()}),
    ),
    "mig-tensor-parallel": (
        lambda: case(services={"llm": service(tp_size=2, gpus=2)}, on=host(gpu(mig=MIG), gpu(1, mig=MIG))),
        lambda: case(services={"llm": service(tp_size=2, gpus=2)}, on=host(gpu(), gpu(1))),
    ),
    "mps-daemon": (
        lambda: case(around=Surroundings(mps=Mps("/mps/gone", False, None))),
        lambda: case(around=Surroundings(mps=Mps("/mps", True, True))),
    ),
    "gpu-memory-ledger": (lambda: sharing(None), lambda: sharing("8GiB")),
    "graph-capture-memory": (
        lambda: case(
            services={"v": service("vllm", model="m", gpu_memory="101GiB")}, around=Surroundings(models={"v": MODEL})
        ),
        lambda: case(
            services={"v": service("vllm", model="m", gpu_memory="110GiB")}, around=Surroundings(models={"v": MODEL})
        ),
    ),
    "orphan-processes": (
        lambda: case(on=host(gpu(holders=(Holder(pid=7, name="python", used_bytes=9 << 30),)))),
        lambda: case(on=host(gpu(holders=(Holder(pid=7, name="Xorg", used_bytes=9 << 20),)))),
    ),
    "engine-version": (lambda: serving(engine(config("0.11.0"))), lambda: serving(engine(config("0.12.0")))),
    "engine-tensorrt-version": (
        lambda: serving(
            engine(manifest={"build": {"engine": {"tensorrt": "10.3.0.25"}}}),
            packages={"tensorrt-llm": "0.12.0", "tensorrt": "10.3.0.26"},
        ),
        lambda: serving(
            engine(manifest={"build": {"tensorrt": "10.3.0.26"}}),
            packages={"tensorrt-llm": "0.12.0", "tensorrt": "10.3.0.26"},
        ),
    ),
    "engine-compute-capability": (
        lambda: serving(engine(manifest={"build": {"compute_capability": "8.9"}})),
        lambda: serving(engine(manifest={"build": {"compute_capability": "9.0"}})),
    ),
    "engine-world-size": (
        lambda: serving(engine(config(world=2), ranks={"rank0.engine": 9, "rank1.engine": 9})),
        lambda: serving(engine()),
    ),
    "engine-complete": (lambda: serving(engine(ranks={"rank0.engine": 0})), lambda: serving(engine())),
    "engine-config-schema": (lambda: serving(engine({"version": "0.12.0"}, ranks={})), lambda: serving(engine())),
    "engine-limits": (
        lambda: serving(engine(), options={"max_seq_len": 4096}),
        lambda: serving(engine(), options={"max_seq_len": 2048}),
    ),
    "model-length": (lambda: long_model(8192), lambda: long_model(4096)),
    "parallel-divides-model": (lambda: shared_out(tp_size=8), lambda: shared_out(tp_size=4)),
    "kv-reuse-paged-fmha": (
        lambda: unpaged(enable_block_reuse=True),
        lambda: serving(engine(), options={"enable_block_reuse": True}),
    ),
    "chunked-context-paged-fmha": (
        lambda: unpaged(enable_chunked_prefill=True),
        lambda: serving(engine(), options={"enable_chunked_prefill": True}),
    ),
    "fused-attention-off": (
        lambda: serving(engine(config(plugins={"context_fmha": False}, build={"max_draft_len": 4}))),
        lambda: serving(engine(config(plugins={"context_fmha": False}))),
    ),
    "fmha-switch-missing": (
        lambda: case(services={"llm": service(model="m", fmha="disable")}),
        lambda: serving(engine(config(plugins={"context_fmha": False})), fmha="disable"),
    ),
    "kv-block-size": (lambda: built(kv_cache={"tokens_per_block": 48}), built),
    "unfused-answers": (lambda: built(fmha="disable"), lambda: built(fmha="disable", model="llama")),
    "fused-attention-workspace": (
        lambda: serving(engine(config(plugins={"context_fmha": "disable"}, build={"max_input_len": 32768}))),
        lambda: serving(engine(config(plugins={"context_fmha": "disable"}, build={"max_input_len": 2048}))),
    ),
    "fp8-fmha-architecture": (
        lambda: serving(
            engine(config("0.10.0", plugins={"use_fp8_context_fmha": True}, quantization={"quant_algo": "FP8"})),
            on=host(gpu(sm="8.9")),
        ),
        lambda: serving(
            engine(config("0.16.0", plugins={"use_fp8_context_fmha": True}, quantization={"quant_algo": "FP8"})),
            on=host(gpu(sm="8.9")),
        ),
    ),
    "fp8-fmha-checkpoint": (
        lambda: serving(engine(config(plugins={"use_fp8_context_fmha": True}))),
        lambda: serving(engine(config(plugins={"use_fp8_context_fmha": True}, quantization={"quant_algo": "FP8"}))),
    ),
    "paged-fmha-architecture": (lambda: serving(engine(), on=VOLTA), lambda: serving(engine())),
    "int8-kv-reuse": (
        lambda: serving(engine(config(quantization={"kv_cache_quant_algo": "INT8"}))),
        lambda: serving(engine(config(quantization={"kv_cache_quant_algo": "FP8"}))),
    ),
    "fmha-head-size": (
        lambda: serving(
            engine(config("1.3.0rc23", quantization={"kv_cache_quant_algo": "FP8"}, pretrained={"head_size": 256})),
            on=host(gpu(sm="12.0")),
            packages={"tensorrt-llm": "1.3.0rc23"},
        ),
        lambda: serving(
            engine(config("1.3.0rc23", quantization={"kv_cache_quant_algo": "FP8"}, pretrained={"head_size": 128})),
            on=host(gpu(sm="12.0")),
            packages={"tensorrt-llm": "1.3.0rc23"},
        ),
    ),
    "build-gpu-busy": (
        lambda: case(
            services={"llm": service()},
            on=host(gpu(holders=(Holder(pid=7, name="python", used_bytes=9 << 30),))),
            around=Surroundings(recipes={"llm": recipe()}, unbuilt=("llm",)),
        ),
        lambda: case(services={"llm": service()}, around=Surroundings(recipes={"llm": recipe()}, unbuilt=("llm",))),
    ),
    "host-memory": (
        lambda: case(
            services={"v": service("vllm", model="m")},
            on=host(limits=ContainerLimits(memory_bytes=64 << 30, shm_bytes=1 << 30)),
            around=Surroundings(models={"v": MODEL}),
        ),
        lambda: case(services={"v": service("vllm", model="m")}, around=Surroundings(models={"v": MODEL})),
    ),
    "mpi-library": (
        lambda: case(around=Surroundings(mpi={"trtllm": Mpi("mpich", "/conda/lib/libmpi.so.12")})),
        lambda: case(around=Surroundings(mpi={"trtllm": Mpi("openmpi", "/usr/lib/libmpi.so.40")})),
    ),
    "slurm-variables": (
        lambda: case(around=Surroundings(environ={"SLURM_JOB_ID": "7"})),
        lambda: case(view("f", {"torch": "2.4.0"}), around=Surroundings(environ={"SLURM_JOB_ID": "7"})),
    ),
    "mpi-slots": (
        lambda: case(services={"llm": service(tp_size=2, gpus=2)}, on=host(gpu(), gpu(1), cores=(Core(cpus=(0,)),))),
        lambda: case(services={"llm": service(tp_size=2, gpus=2)}, on=host(gpu(), gpu(1))),
    ),
    "cpu-affinity": (
        lambda: case(on=host(gpu(cpus=(96, 97)))),
        lambda: case(on=host(gpu(cpus=(6, 7, 96)))),
    ),
    "cpuset-mems": (lambda: coherent(0), lambda: coherent(0, 2)),
    "numa-permission": (
        lambda: case(on=host(limits=ContainerLimits(mempolicy_permitted=False))),
        lambda: case(on=host(limits=ContainerLimits(mempolicy_permitted=True))),
    ),
    "memory-only-node": (
        lambda: case(on=host(numa=(NumaNode(node=0, cpus=(0,)), NumaNode(node=2, cpus=())))),
        case,
    ),
    "numa-unknown": (
        lambda: case(on=host(gpu(numa_nodes=None), cores=(Core(cpus=(0,), numa_node=0), Core(cpus=(1,), numa_node=1)))),
        lambda: case(on=host(cores=(Core(cpus=(0,), numa_node=0), Core(cpus=(1,), numa_node=1)))),
    ),
    "shared-memory-size": (
        lambda: case(services={"llm": service()}, on=host(limits=ContainerLimits(shm_bytes=64 << 20))),
        lambda: case(services={"llm": service()}),
    ),
    "port-free": (
        lambda: case(services={"llm": service()}, around=Surroundings(ports=(PortHolder(8001, "'nginx' (pid 4)"),))),
        lambda: case(services={"llm": service()}, around=Surroundings(ports=(PortHolder(8002),))),
    ),
    "stale-jit-lock": (lambda: case(around=lock(False, True)), lambda: case(around=lock(True, True))),
    "shared-kernel-cache": (
        lambda: case(
            services={
                "a": service("vllm", model="m", env={"TRITON_CACHE_DIR": "/c"}),
                "b": service("vllm", model="m", env={"TRITON_CACHE_DIR": "/c"}, port=8002),
            },
            around=Surroundings(caches=(Cache(Path("/c"), "TRITON_CACHE_DIR"),)),
        ),
        lambda: case(
            services={"a": service("vllm", model="m", env={"TRITON_CACHE_DIR": "/c"})},
            around=Surroundings(caches=(Cache(Path("/c"), "TRITON_CACHE_DIR"),)),
        ),
    ),
    "cache-on-network": (
        lambda: case(around=Surroundings(caches=(Cache(Path("/c"), "TRITON_CACHE_DIR", "nfs4", True),))),
        lambda: case(around=Surroundings(caches=(Cache(Path("/c"), "TRITON_CACHE_DIR", "ext4", False),))),
    ),
    "model-files": (
        lambda: case(
            services={"v": service("vllm", model="m")},
            around=Surroundings(models={"v": ModelFolder(Path("/m"), ("model-00002.safetensors is missing",))}),
        ),
        lambda: case(services={"v": service("vllm", model="m")}, around=Surroundings(models={"v": MODEL})),
    ),
    "triton-instance-gpus": (
        lambda: case(around=triton(instance_gpus=True)),
        lambda: case(around=triton(instance_gpus=True, gpu_device_ids=True)),
    ),
    "triton-warmup-model": (
        lambda: case(around=triton(backend=None, platform="ensemble", warmup=True)),
        lambda: case(around=triton(warmup=True)),
    ),
}  # fmt: skip

# Public reports, and the rule that would have told before a launch.
REPORTS = {
    "NVIDIA/TensorRT-LLM#4392": "flash-attn-breaks-server",
    "Dao-AILab/flash-attention#1644": "abi-torch-mismatch",
    "Dao-AILab/flash-attention#1783": "abi-torch-mismatch",
    "Dao-AILab/flash-attention#853": "abi-torch-mismatch",
    "Dao-AILab/flash-attention#709": "torch-prerelease",
    "Dao-AILab/flash-attention#631": "missing-library",
    "vllm-project/vllm#44335": "cuda-major",
    "NVIDIA/TensorRT-LLM#4275": "gpu-architecture",
    "NVIDIA/TensorRT-LLM#2465": "roles-cannot-share",
    "NVIDIA/TensorRT-LLM#601": "dependency-conflict",
    "pytorch/pytorch#91067": "shadowed-library",
    "pytorch/pytorch#80637": "library-too-old",
    "Dao-AILab/flash-attention#762": "flash-attention-architecture",
    "pytorch/pytorch#167244": "gpu-architecture",
    "gpustack/gpustack#4678": "cuda-compat-library",
    "NVIDIA/TensorRT-LLM#2286": "mpi-library",
    "NVIDIA/TensorRT-LLM#2301": "slurm-variables",
    "triton-inference-server/tensorrtllm_backend#531": "engine-tensorrt-version",
    "triton-inference-server/tensorrtllm_backend#194": "engine-tensorrt-version",
    "NVIDIA/TensorRT-LLM#222": "engine-compute-capability",
    "triton-inference-server/server#7661": "engine-config-schema",
    "NVIDIA/TensorRT-LLM#108": "engine-world-size",
    "triton-inference-server/tensorrtllm_backend#271": "kv-reuse-paged-fmha",
    "NVIDIA/TensorRT-LLM#1671": "fp8-fmha-architecture",
    "NVIDIA/TensorRT-LLM#2122": "fmha-head-size",
    "triton-inference-server/tensorrtllm_backend#141": "engine-limits",
    "NVIDIA/TensorRT-LLM#1543": "build-gpu-busy",
    "NVIDIA/TensorRT-LLM#102": "host-memory",
    "NVIDIA/TensorRT#1384": "engine-complete",
    "NVIDIA/TensorRT-LLM#574": "engine-version",
    "triton-inference-server/tensorrtllm_backend#481": "triton-instance-gpus",
    "NVIDIA/TensorRT-LLM#1494": "ranks-per-host",
    "vllm-project/vllm#10533": "gpu-memory-ledger",
    "unslothai/unsloth#6352": "mixed-gpu-order",
    "NVIDIA/nvidia-container-toolkit#714": "mps-daemon",
    "pytorch/pytorch#3871": "compute-mode",
    "NVIDIA/k8s-device-plugin#446": "mig-tensor-parallel",
    "vllm-project/vllm PR#45438": "numa-permission",
    "vllm-project/vllm PR#39361": "memory-only-node",
    "public GB200 Slurm notes": "cpuset-mems",
    "sgl-project/sglang PR#39552": "cpu-affinity",
    "NVIDIA/TensorRT-LLM#5854": "mpi-slots",
    "tensorflow/tensorflow#42738": "numa-unknown",
    "flashinfer-ai/flashinfer#2262": "stale-jit-lock",
    "triton-inference-server/server#4330": "triton-warmup-model",
    "sgl-project/sglang#14754": "model-files",
    "vllm-project/vllm#2521": "graph-capture-memory",
    "NVIDIA/nccl#290": "shared-memory-size",
    "vllm-project/vllm#55510": "orphan-processes",
    "triton-inference-server/tensorrtllm_backend#243": "port-free",
}


@pytest.mark.parametrize("rule", sorted(CASES))
def test_a_rule_speaks_where_it_must(rule: str) -> None:
    found = findings(CASES[rule][0]())
    assert rule in found
    told = found[rule]
    for text in (told.what, told.why, told.fix):
        assert text
        assert "{" not in text
        assert "unknown)" not in text.replace("(unknown)", ""), text
    assert told.source


@pytest.mark.parametrize("rule", sorted(CASES))
def test_a_rule_is_silent_where_it_must_be(rule: str) -> None:
    assert rule not in findings(CASES[rule][1]())


@pytest.mark.parametrize(
    ("told", "changes"),
    [
        ({"canary": {"expected": " Paris"}}, {}),
        ({}, {"canary": {"expected": " Paris"}}),
        ({"canary": {"path": "/v2/models/m/infer"}}, {}),
        ({}, {"fmha": "enable"}),
        ({"runtime": "torch"}, {"builder": "torch", "model": "llama"}),
    ],
)
def test_an_unfused_engine_needs_one_who_knows_what_is_right(told: dict[str, Any], changes: dict[str, Any]) -> None:
    assert "unfused-answers" not in findings(built(told, **{"fmha": "disable", **changes}))


def test_what_an_unfused_engine_lacks_is_a_step_for_a_fused_one_may_have_answered() -> None:
    found = findings(built({"fmha": "disable"}))["unfused-answers"]
    assert (found.severity, found.effect) == ("warning", "step")


def test_the_nearest_block_sizes_are_named_and_a_cache_without_blocks_has_any() -> None:
    assert "32 or 64" in findings(built(kv_cache={"tokens_per_block": 48}))["kv-block-size"].fix
    assert "kv-block-size" not in findings(built(kv_cache={"type": "continuous", "tokens_per_block": 48}))


def test_an_engine_that_its_recipe_can_build_again_is_a_step_and_one_without_is_an_error() -> None:
    around = engine(config("0.11.0"))
    alone = findings(serving(around))["engine-version"]
    again = findings(serving(replace(around, recipes={"llm": recipe()})))["engine-version"]
    assert (alone.severity, alone.effect) == ("error", "blocks")
    assert (again.severity, again.effect) == ("warning", "step")


def test_a_module_of_mpi4py_for_an_mpi_that_is_not_here_is_no_fault() -> None:
    lost = Mismatch("library_missing", SITE / "mpi4py/MPI.mpich.so", "mpi", "libmpi.so.12")
    files = binaries(binary(lost, package="mpi4py", name="mpi4py/MPI.mpich.so"))
    assert findings(case(view("x", {"mpi4py": "4.1.2"}, binaries=files))) == {}


def test_memory_that_an_idle_driver_keeps_is_nobodys() -> None:
    idle = gpu(used_bytes=615 << 20, holders=(Holder(pid=None, name=None, used_bytes=615 << 20),))
    assert "orphan-processes" not in findings(case(on=host(idle)))
    full = gpu(used_bytes=90 << 30, holders=(Holder(pid=None, name=None, used_bytes=90 << 30),))
    assert "unknown holder" in findings(case(on=host(full)))["orphan-processes"].what


def test_every_rule_of_the_check_has_both_cases() -> None:
    assert set(CASES) == {name for name, rule in book.rules().items() if rule.by == "check"}


@pytest.mark.parametrize(("report", "rule"), REPORTS.items())
def test_a_public_report_would_have_been_told_before_the_launch(report: str, rule: str) -> None:
    first = report.split("#", maxsplit=1)[0]
    number = report.removeprefix(first)
    sources = book.rules()[rule].source
    assert report in sources or (first in " ".join(sources) and any(number in each for each in sources))
    assert rule in findings(CASES[rule][0]())


def test_a_flash_attn_file_that_no_installer_recorded_still_belongs_to_flash_attn() -> None:
    name = "flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so"
    file = binary(Mismatch("unreadable", GUILTY, None, "not an ELF file"), package=None, name=name)
    packages: dict[str, str | None] = {"flash-attn": "2.6.3", "transformers": "4.51.0"}
    found = judge.judge(case(view("flash", packages, binaries=binaries(file)))).findings
    assert {each.id for each in found} >= {"binary-damaged", "flash-attn-breaks-server"}
    assert all("flash-attn-2-cuda" not in each.fix for each in found)


def test_a_config_that_speaks_of_absurd_ranks_is_told_in_few_words() -> None:
    vast, negative = serving(engine(config(world=10**9))), serving(engine(config(world=-3)))
    assert len(findings(vast)["engine-complete"].what) < 300
    assert "engine-world-size" not in findings(negative)


def test_a_service_that_asks_for_no_gpu_is_told_that_alone() -> None:
    found = findings(serving(engine(), gpus=0))
    assert "engine-world-size" not in found
    assert found["gpu-not-asked"].severity == "warning"


@pytest.mark.parametrize(
    "unread",
    [{"read": False}, {"problems": (Problem("interpreter_is_script", "python"),)}],
    ids=["elsewhere", "script"],
)
def test_of_environments_that_were_not_read_nothing_is_said_but_that(unread: dict[str, Any]) -> None:
    both = case(
        view("a", {}, **unread), view("b", {}, **unread),
        services={"x": service(environment="a"), "y": service(environment="b")},
    )  # fmt: skip
    (pair,) = judge.judge(both).pairs
    assert (pair.closest, pair.why) == ("same-host", "Their environments were not read.")
