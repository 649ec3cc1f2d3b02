"""What the name of a missing symbol says: whose it is, and what the file that asks for it was built against. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from toolkit.demangle import Abi, identifiers, readable, string_abi

Age = Literal["older", "newer"]
Owner = Literal[
    "torch", "tensorrt_llm", "tensorrt", "cuda", "cuda_driver", "python", "mpi", "libstdc++", "libc", "openmp"
]

NAMESPACES: dict[str, Owner] = {
    "c10": "torch",
    "at": "torch",
    "torch": "torch",
    "caffe2": "torch",
    "c10d": "torch",
    "tensorrt_llm": "tensorrt_llm",
    "nvinfer1": "tensorrt",
    "nvonnxparser": "tensorrt",
    "St": "libstdc++",
    "__cxxabiv1": "libstdc++",
    "__gnu_cxx": "libstdc++",
}
C_NAMES: tuple[tuple[re.Pattern[str], Owner], ...] = (
    (re.compile(r"aoti_torch_|torch_|THP|shim_"), "torch"),
    (re.compile(r"_?_?cuda[A-Z]|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvrtc|nvJitLink|cupti"), "cuda"),
    (re.compile(r"cu[A-Z]|nvml[A-Z]"), "cuda_driver"),
    (re.compile(r"createInfer\w*|getInferLibVersion|initLibNvInferPlugins|getPluginRegistry"), "tensorrt"),
    (re.compile(r"_?Py[A-Z_]"), "python"),
    (re.compile(r"P?MPI_|ompi_|MPIX_"), "mpi"),
    (re.compile(r"__cxa_|__gxx_personality|_Unwind_"), "libstdc++"),
    (re.compile(r"GOMP_|omp_|__kmpc_"), "openmp"),
)
VERSIONS: tuple[tuple[str, Owner], ...] = (
    ("GLIBCXX_", "libstdc++"),
    ("CXXABI_", "libstdc++"),
    ("GLIBC_", "libc"),
    ("GOMP_", "openmp"),
    ("GCC_", "libstdc++"),
)
_TAIL = re.compile(r"(?:C[1-4]|D[0-5])?")

# Types that torch gave up for others: (as an older torch spells it, as a newer one does). Only the order counts here.
# Source: c10/util/Optional.h, string_view.h and variant.h became aliases of, then gave way to, std's; the last two by
# reading a torchvision built for torch 2.9 against the exports of torch 2.13.
REPLACED = (
    ("c10::optional<", "std::optional<"),
    ("c10::basic_string_view<", "std::basic_string_view<"),
    ("c10::variant<", "std::variant<"),
    ("std::shared_ptr<torch::autograd::Node>", "c10::intrusive_ptr<torch::autograd::Node,"),
    ("at::Tag", "torch::headeronly::Tag"),
)
# c10::cuda's functions took a device as int before they took c10::DeviceIndex, which is signed char.
# Source: c10/cuda/CUDAFunctions.h; the symbol of https://github.com/Dao-AILab/flash-attention/issues/853 and its kind.
DEVICE_FUNCTION = re.compile(r"c10::cuda::(?:\w*Device\w*|\w*Stream\w*)\(")


@dataclass(frozen=True)
class Evidence:
    """What one symbol that nobody exports tells.

    ``kind``: ``cxx11_abi``: the same function is there under the other ABI of ``std::string``; ``signature``: the same
    name is there with other parameters (``exported``, readable); ``version``: the name is there in other versions
    only; ``absent``: nothing of that name. ``asked_abi``: the ABI the file was built with, when its name tells.
    ``built_for``: an older or newer release of the owner than the one here, when the names tell.
    """

    owner: Owner | None
    kind: Literal["cxx11_abi", "signature", "version", "absent"]
    asked: str
    exported: tuple[str, ...] = ()
    asked_abi: Abi | None = None
    built_for: Age | None = None


def weigh(symbol: str, version: str | None, exported: Iterable[str]) -> Evidence:
    """The evidence of a missing symbol, given the mangled names that are exported under the same qualified name."""
    others = tuple(exported)
    owner, asked, abi = owner_of(symbol, version), readable(symbol), string_abi(symbol)
    if symbol in others:
        return Evidence(owner, "version", asked, asked_abi=abi)
    if not others:
        return Evidence(owner, "absent", asked, asked_abi=abi)
    forms = tuple(dict.fromkeys(readable(name) for name in others))
    twins = {string_abi(name) for name in others if readable(name) == asked}
    if twins - {abi}:
        known = abi or ("new" if "old" in twins else "old")
        return Evidence(owner, "cxx11_abi", asked, forms, asked_abi=known)
    return Evidence(owner, "signature", asked, forms, asked_abi=abi, built_for=age(asked, forms))


def age(asked: str, forms: Iterable[str]) -> Age | None:
    """Whether a signature is older or newer than those that are there, where torch's history tells."""
    for form in forms:
        for older, newer in REPLACED:
            if _only_in(older, asked, form) and _only_in(newer, form, asked):
                return "older"
            if _only_in(newer, asked, form) and _only_in(older, form, asked):
                return "newer"
        if DEVICE_FUNCTION.match(asked) and asked != form:
            if asked.replace("signed char", "int") == form:
                return "newer"
            if form.replace("signed char", "int") == asked:
                return "older"
    return None


def _only_in(text: str, one: str, other: str) -> bool:
    return text in one and text not in other


def owner_of(symbol: str, version: str | None = None) -> Owner | None:
    """Whose symbol it is, by namespace, prefix or version; None: nobody known."""
    for prefix, owner in VERSIONS:
        if version and version.startswith(prefix):
            return owner
    if symbol.startswith("_Z"):
        return NAMESPACES.get(next((name for name, _ in identifiers(symbol)), ""))
    return next((owner for pattern, owner in C_NAMES if pattern.match(symbol)), None)


def same_name_prefixes(symbol: str) -> tuple[str, ...]:
    """Beginnings of mangled names that have the same qualified name as a C++ function; empty for other symbols."""
    ends = [end for _, end in identifiers(symbol)] if symbol.startswith("_ZN") else []
    if len(ends) < 2:
        return ()
    tail = _TAIL.match(symbol, ends[-1])
    prefix = symbol[: ends[-1]] + (tail[0][:1] if tail else "")
    constant = prefix.startswith("_ZNK")
    other = "_ZN" + prefix[4:] if constant else "_ZNK" + prefix[3:]
    return prefix, other


def is_same_name(prefix: str, name: str) -> bool:
    """Whether a mangled name that begins with a prefix of ``same_name_prefixes`` names that function itself."""
    return bool(re.match(r"(?:[1-5])?(?:B\d|E|I)", name[len(prefix) :]))
