"""What a schema can't say: names that must exist, orders that must end, keys that need or exclude each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from toolkit.config.document import Fault
from toolkit.config.models import EngineUse, HttpRequest, Recipe, Service
from toolkit.names import suggestion

NEEDS_ENGINE = {"torch"}
NEEDS_MODEL = {"flash", "transformers", "vllm", "sglang"}
NEEDS_EITHER = {"trtllm", "triton"}
EVERY_ADDRESS = {"0.0.0.0", "::", ""}  # noqa: S104  compared with, not bound to


@dataclass(frozen=True)
class Names:
    """What the file defines, entries with faults of their own included."""

    services: Collection[str]
    engines: Collection[str]
    environments: Collection[str]


def of_deployment(
    services: Mapping[str, Service],
    engines: Mapping[str, EngineUse],
    names: Names,
    control_port: int | None = None,
    unsure: Collection[str] = (),
) -> Iterator[Fault]:
    """The faults between the entries of a deployment.

    ``unsure``: services of which runtime, engine, model or argv are at fault themselves.
    """
    for name, engine in engines.items():
        yield from _unknown(("engines", name, "environment"), engine.environment, names.environments, "environment")
    for name, service in services.items():
        yield from _names_of_service(name, service, names)
        if name not in unsure:
            yield from _needs(name, service)
            yield from _only_for_command(name, service)
        yield from _parallel_sizes(name, service)
    for key in ("after", "requires"):
        yield from _cycles(key, {name: getattr(service, key) for name, service in services.items()})
    yield from _ports(services, control_port)


def _names_of_service(name: str, service: Service, names: Names) -> Iterator[Fault]:
    yield from _unknown(("services", name, "engine"), service.engine, names.engines, "engine")
    yield from _unknown(("services", name, "environment"), service.environment, names.environments, "environment")
    for key in ("after", "requires"):
        for i, other in enumerate(getattr(service, key)):
            path = ("services", name, key, i)
            yield from _unknown(path, other, names.services, "service")
            if other == name:
                yield Fault(path, f"'{name}' waits for itself", "Remove it.")


def _unknown(path: tuple[str | int, ...], name: str | None, known: Collection[str], kind: str) -> Iterator[Fault]:
    if name is not None and name not in known:
        hint = suggestion(name, known) or f"This file defines no {kind}; add it under '{kind}s:'."
        yield Fault(path, f"no {kind} is named '{name}'", hint)


def _needs(name: str, service: Service) -> Iterator[Fault]:
    path, runtime = ("services", name), service.runtime
    engine, model = service.engine is not None, service.model is not None
    if runtime in NEEDS_ENGINE and not engine:
        yield Fault(path, f"runtime '{runtime}' serves an engine; 'engine' is missing", "Name one of 'engines:'.")
    if runtime in NEEDS_MODEL and not model:
        yield Fault(path, f"runtime '{runtime}' serves a model folder; 'model' is missing", "Write 'model: PATH'.")
    if runtime in NEEDS_ENGINE and model:
        yield Fault((*path, "model"), f"runtime '{runtime}' takes its model from the engine's recipe", "Remove it.")
    if runtime in NEEDS_MODEL and engine:
        yield Fault((*path, "engine"), f"runtime '{runtime}' serves a model folder, no engine", "Remove it.")
    if runtime in NEEDS_EITHER and not (engine or model):
        yield Fault(path, f"runtime '{runtime}' serves an engine or a model; both are missing", "Write one of them.")
    if runtime == "trtllm" and engine and model:
        yield Fault((*path, "model"), "'engine' and 'model' exclude each other", "Keep the one that is served.")
    if runtime == "command" and not service.argv:
        yield Fault(path, "runtime 'command' needs 'argv'", 'Write the program and its arguments: argv: ["…", "…"].')


def _only_for_command(name: str, service: Service) -> Iterator[Fault]:
    if service.runtime == "command":
        return
    asked_freely = service.runtime == "triton"  # its models have shapes of their own
    for key in ("argv", "ready", *(() if asked_freely else ("warmup_requests",))):
        if key in service.model_fields_set:
            yield Fault(("services", name, key), f"'{key}' is for runtime 'command' only", "Remove it.")
    if isinstance(service.canary, HttpRequest) and not asked_freely:
        what = f"a canary of runtime '{service.runtime}' is a prompt, not an HTTP request"
        yield Fault(("services", name, "canary"), what, "Write prompt, max_tokens and expected.")


def _parallel_sizes(name: str, service: Service) -> Iterator[Fault]:
    world_size, gpus = service.world_size, service.gpus.size
    if "gpus" not in service.model_fields_set or (world_size == 1 and gpus == 0):
        return
    if gpus == 0 or gpus % world_size:
        sizes = f"tp_size {service.tp_size} x pp_size {service.pp_size}"
        hint = f"Ask for {world_size} GPUs, or a multiple of that."
        yield Fault(("services", name, "gpus"), f"{gpus} GPUs cannot be divided among {sizes}", hint)


def _cycles(key: str, edges: Mapping[str, Collection[str]]) -> Iterator[Fault]:
    """One fault per cycle of two and more, at its first service in file order."""
    told: set[str] = set()
    for name in edges:
        cycle = _path_back(name, edges)
        if cycle and len(cycle) > 1 and not told & set(cycle):
            told |= set(cycle)
            ring = " -> ".join((*cycle, name))
            yield Fault(("services", name, key), f"'{key}' goes round in a circle: {ring}", "Break it at one place.")


def _path_back(start: str, edges: Mapping[str, Collection[str]]) -> tuple[str, ...] | None:
    """A shortest way from ``start`` back to it, without its end, or None."""
    reached = {start}
    frontier: list[tuple[str, ...]] = [(start,)]
    while frontier:
        way, *frontier = frontier
        for other in edges.get(way[-1], ()):
            if other == start:
                return way
            if other not in reached:
                reached.add(other)
                frontier.append((*way, other))
    return None


def _ports(services: Mapping[str, Service], control_port: int | None) -> Iterator[Fault]:
    taken: list[tuple[str | None, str, int]] = [(None, "127.0.0.1", control_port)] if control_port else []
    for name, service in services.items():
        if service.port is None:
            continue
        for owner, host, port in taken:
            if port == service.port and meet(host, service.host):
                yield _port_twice(name, owner, port)
                break
        taken.append((name, service.host, service.port))


def _port_twice(name: str, owner: str | None, port: int) -> Fault:
    """The fault, with the words of a plan's refusal; ``owner`` None: coexist itself."""
    others = () if owner is None else (owner,)
    amounts = (("resource", "port"), ("needed", 1 + len(others)), ("available", len(others)))
    by = "coexist's control port" if owner is None else f"services.{owner}"
    what = f"port {port} is used twice, here and by {by}"
    hint = "Choose another, or leave 'port' out to have one picked."
    return Fault(("services", name, "port"), what, hint, details=(*amounts, ("services", (name, *others))))


def meet(host: str, other: str) -> bool:
    """Whether who listens on one address takes ports of the other."""
    return host == other or bool({host, other} & EVERY_ADDRESS)


def of_recipe(recipe: Recipe) -> Iterator[Fault]:
    """The faults between the keys of a sound recipe."""
    yield from (_of_torch if recipe.builder == "torch" else _of_trtllm)(recipe)
    if recipe.canary.max_tokens >= recipe.limits.max_seq_len:
        what = f"{recipe.canary.max_tokens} tokens do not fit limits.max_seq_len {recipe.limits.max_seq_len}"
        yield Fault(("canary", "max_tokens"), what)


def _of_torch(recipe: Recipe) -> Iterator[Fault]:
    if recipe.model is None:
        yield Fault((), "builder 'torch' compiles a model folder; 'model' is missing", "Write 'model: PATH'.")
    for key in ("checkpoint", "convert_script"):
        if getattr(recipe, key) is not None:
            yield Fault((key,), f"'{key}' is for builder 'trtllm' only", "Remove it.")
    for key in ("tp_size", "pp_size"):
        if getattr(recipe, key) != 1:
            yield Fault((key,), "builder 'torch' builds for one device", f"Remove '{key}'.")


def _of_trtllm(recipe: Recipe) -> Iterator[Fault]:
    if recipe.convert_script is not None and recipe.model is None:
        yield Fault(("convert_script",), "'convert_script' converts 'model', which is missing", "Write 'model: PATH'.")
    elif recipe.checkpoint is None and recipe.convert_script is None:
        hint = "Write 'checkpoint: PATH' of a converted one, or 'model' with 'convert_script'."
        yield Fault((), "builder 'trtllm' builds from a checkpoint, and there is none to take or make", hint)
