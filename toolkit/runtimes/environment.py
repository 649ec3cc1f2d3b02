"""The environment of a server process, built name by name: nothing of the parent's gets in unasked."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.errors import ToolkitError
from toolkit.runtimes.base import Assignment, Context

# What a program may need of the machine it runs on. LD_LIBRARY_PATH: some hosts have the driver's libraries there only.
INHERITED = ("HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULTS = {"LANG": "C.UTF-8", "TMPDIR": "/tmp"}  # noqa: S108  the system's own default
FIXED = {
    # UUIDs and indices must mean what nvidia-smi means.
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # GNU OpenMP's threads spin for milliseconds by default, which starves whoever shares a core with them. Read on 2
    # cores: a compiled 135M decoder took 586 ms a token beside other work, 31 ms with this, and 23 ms when threads
    # never spin; 200 small matrix products on idle cores took 16 ms with and without this, and 25 ms without spinning.
    "GOMP_SPINCOUNT": "1000",
    # flash-attn-4 keeps compiled kernels on disk only when told to.
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
}
THREAD_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
CACHE_FOLDERS = {
    "XDG_CACHE_HOME": "xdg",
    "CUDA_CACHE_PATH": "cuda",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "DG_JIT_CACHE_DIR": "deep-gemm",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attn",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
}
# Where a new file means that something was compiled: what to call it, and the folder below.
COMPILE_FOLDERS = {
    "CUDA_CACHE_PATH": ("cuda", ""),
    "CUTE_DSL_CACHE_DIR": ("cute-dsl", ""),
    "DG_JIT_CACHE_DIR": ("deep-gemm", ""),
    "FLASHINFER_WORKSPACE_BASE": ("flashinfer", ""),
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": ("flash-attn", ""),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", ""),
    "TORCH_EXTENSIONS_DIR": ("torch-extensions", ""),
    "TRITON_CACHE_DIR": ("triton", ""),
    "VLLM_CACHE_ROOT": ("vllm", "torch_compile_cache"),
}
TOKEN = "COEXIST_TOKEN"  # noqa: S105  a variable's name
OURS = {
    "CUDA_VISIBLE_DEVICES": "The plan says which GPUs a service sees; ask with 'gpus'.",
    TOKEN: "coexist makes a new token for each attempt.",
}
# Each of these moves threads away from, or on top of each other within, the mask that the plan gives.
PINNING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def build(context: Context, assignment: Assignment) -> dict[str, str]:
    """The whole environment of the process; the service's own ``env`` comes last."""
    cores = assignment.physical_cores or len(assignment.cpus) or 1
    return {
        "PATH": f"{context.python.parent}:{context.environ.get('PATH') or DEFAULT_PATH}",
        "HOME": str(context.cache_dir),
        **DEFAULTS,
        **inherited(context.environ),
        **FIXED,
        **dict.fromkeys(THREAD_COUNTS, str(cores)),
        **{name: str(context.cache_dir / folder) for name, folder in CACHE_FOLDERS.items()},
        "CUDA_VISIBLE_DEVICES": ",".join(assignment.device_uuids),
        TOKEN: context.token,
        **context.service.env,
    }


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of coexist itself that a server process gets too."""
    return {name: environ[name] for name in INHERITED if environ.get(name)}


def check(name: str, env: Mapping[str, str]) -> None:
    """Raises ToolkitError when a service's ``env`` sets what only the plan may set."""
    for variable in env:
        if variable in OURS:
            raise ToolkitError(
                f"'{variable}' can't be set here",
                f"services.{name}.env.{variable}",
                OURS[variable],
                code="env_reserved",
            )
