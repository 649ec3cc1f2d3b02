"""``options:`` of a TensorRT-LLM service: flags of trtllm-serve, keys of its options file, and the launcher. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.config.models import Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.facts import serve_options
from toolkit.facts.options import Option
from toolkit.runtimes import trtllm_guards
from toolkit.runtimes.trtllm_guards import Because
from toolkit.runtimes.trtllm_release import OPTIONS_FILE, Release, releases
from toolkit.runtimes.words import BadValueError, unknown, words_of

PROGRAM = "trtllm-serve"
LAUNCHER, POOL, MPIRUN = "launcher", "pool", "mpirun"
LAUNCHERS = (POOL, MPIRUN)
_BUDGET = "The ledger owns the GPU's memory: write 'gpu_memory'."
_KEYS = "Write the keys themselves: 'extra_llm_api_options: {KEY: VALUE}'; coexist writes the file."
_OTHER_KIND = "coexist asks and watches it over HTTP in OpenAI's shapes."
# Decided elsewhere, by every name.
OWNED: Mapping[str, str] = {
    "--host": "Write 'host' of the service.",
    "--port": "Write 'port' of the service: the plan gives each one its own.",
    "--backend": "'engine:' or 'model:' of the service decides it.",
    "--tp_size": "Write 'tp_size' of the service.",
    "--pp_size": "Write 'pp_size' of the service.",
    "--cp_size": "coexist divides a model by tp_size and pp_size only.",
    "--gpus_per_node": "The plan knows it.",
    "--kv_cache_free_gpu_memory_fraction": _BUDGET,
    "--grpc": _OTHER_KIND,
    "--server_role": _OTHER_KIND,
}
# The same, by their keys in the options file.
OWNED_KEYS: Mapping[str, str] = {
    "kv_cache_config.free_gpu_memory_fraction": _BUDGET,
    "kv_cache_config.max_tokens": _BUDGET,
    "attn_backend": "Write 'attention' of the service.",
    "pytorch_backend_config.attn_backend": "Write 'attention' of the service.",
    "backend": OWNED["--backend"],
    "tensor_parallel_size": OWNED["--tp_size"],
    "pipeline_parallel_size": OWNED["--pp_size"],
    "context_parallel_size": OWNED["--cp_size"],
    "gpus_per_node": OWNED["--gpus_per_node"],
}


@dataclass(frozen=True)
class Given:
    """What a service's options come to. ``words``: flags in the order written; ``values``: by name without dashes.

    ``llm_args``: keys of the options file as written.
    """

    words: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    llm_args: Mapping[str, Any] = field(default_factory=dict)
    launcher: str = POOL

    def count(self, name: str) -> int | None:
        """A whole number that an option is set to; None: it is not written."""
        value = self.values.get(name)
        return value if type(value) is int else None


@dataclass(frozen=True)
class Allowed:
    """What options may ask for: ``able`` is what may be switched on (None: not known), ``because`` why not.

    ``tokenizer``: it is the service's to choose.
    """

    release: Release
    able: Mapping[str, bool] | None = None
    because: Because = trtllm_guards.ENGINE
    tokenizer: bool = True


def given(name: str, service: Service, allowed: Allowed) -> Given:
    """The options, checked against the release and what may be switched on.

    Raises: ManyFaultsError with everything that the release does not have, would refuse, or that is decided elsewhere.
    """
    where = f"services.{name}.options"
    faults: list[ToolkitError] = []
    chosen: dict[str, tuple[Option, Any]] = {}
    for key, value in service.options.items():
        found, fault = _flag(f"{where}.{key}", key, value, allowed)
        if found is not None and found.name in chosen:
            fault = ToolkitError(f"'{key}' is written twice, by two names", f"{where}.{key}", "Keep one.")
        if fault is not None:
            faults.append(fault)
        elif found is not None:
            chosen[found.name] = (found, value)
    faults += _file_faults(where, service, allowed.release)
    if allowed.able is not None:
        faults += trtllm_guards.refused_features(allowed.able, service.options, where, allowed.because)
    if faults:
        raise ManyFaultsError(tuple(faults))
    return Given(
        words=tuple(word for option, value in chosen.values() for word in words_for(option, value)),
        values={_plain(name): value for option, value in chosen.values() for name in (option.name, *option.aliases)},
        llm_args=_file_keys(service, allowed.release),
        launcher=str(service.options.get(LAUNCHER, POOL)),
    )


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def words_for(option: Option, value: Any) -> tuple[str, ...]:
    """The words of one option: its name and value; a flag that is off has none.

    Raises: BadValueError.
    """
    if option.kind == "flag" and value is False:
        return ()
    return (option.name, *words_of(option, value))


def _flag(where: str, key: str, value: Any, allowed: Allowed) -> tuple[Option | None, ToolkitError | None]:
    """The option, or what is wrong with it; neither for keys that are no flags."""
    if key == LAUNCHER:
        return None, _launcher_fault(where, value)
    option = find(key, allowed.release)
    if option is None:
        return None, _unknown(where, key, allowed.release)
    names = (option.name, *option.aliases)
    if any(name in OPTIONS_FILE for name in names):
        return None, None
    owner = next((OWNED[name] for name in names if name in OWNED), None)
    if option.name == "--tokenizer" and not allowed.tokenizer:
        owner = "The engine's recipe names its model, whose tokenizer is used."
    if owner is not None:
        return None, ToolkitError(f"'{key}' is not set here", where, owner, code="option_owned")
    try:
        words_for(option, value)
    except BadValueError as bad:
        return None, ToolkitError(f"'{key}' {bad}", where, bad.hint, code="bad_option")
    return option, None


def find(key: str, release: Release) -> Option | None:
    """The option that a key names, with dashes or underscores, with those in front or without."""
    plain = str(key).lstrip("-")
    spelt = (plain, plain.replace("-", "_"), plain.replace("_", "-"))
    return next((option for each in spelt if (option := release.table.find(f"--{each}"))), None)


def _launcher_fault(where: str, value: Any) -> ToolkitError | None:
    if value in LAUNCHERS:
        return None
    hint = "'pool' lets trtllm-serve start its ranks itself; 'mpirun' starts and pins each rank."
    return ToolkitError(f"'{value}' is none of {', '.join(LAUNCHERS)}", where, hint, code="bad_option")


def _unknown(where: str, key: str, release: Release) -> ToolkitError:
    names = (name.removeprefix("--") for name in release.table.options if name not in OWNED)
    return unknown(
        key,
        where,
        program=PROGRAM,
        release=release.version,
        names=(*names, LAUNCHER),
        others=releases_with(key),
        code="unknown_option",
    )


def releases_with(key: str) -> list[str]:
    """The releases whose trtllm-serve has an option, oldest first."""
    tables = {each: serve_options(each) for each in releases()}
    return [each for each, table in tables.items() if table is not None and find(key, Release(each, table))]


def _file_options(service: Service, release: Release) -> Iterator[tuple[str, Any]]:
    for key, value in service.options.items():
        option = find(key, release) if key != LAUNCHER else None
        if option is not None and any(name in OPTIONS_FILE for name in (option.name, *option.aliases)):
            yield key, value


def _file_keys(service: Service, release: Release) -> Mapping[str, Any]:
    return {
        key: value
        for _, given_keys in _file_options(service, release)
        if isinstance(given_keys, Mapping)
        for key, value in given_keys.items()
    }


def _file_faults(where: str, service: Service, release: Release) -> Iterator[ToolkitError]:
    for name, keys in _file_options(service, release):
        if not isinstance(keys, Mapping):
            yield ToolkitError(f"'{name}' takes a mapping, not a file", f"{where}.{name}", _KEYS, code="bad_option")
            continue
        for path, _ in _leaves(keys):
            if path in OWNED_KEYS:
                what = f"'{path}' is not set here"
                yield ToolkitError(what, f"{where}.{name}.{path}", OWNED_KEYS[path], code="option_owned")


def _leaves(keys: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in keys.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
