"""The right answers of every service of a deployment that has no recorded ones of its own, made once per model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from toolkit import canaries
from toolkit.assemble import fused_answers
from toolkit.assemble.launches import Engine
from toolkit.assemble.paths import Paths
from toolkit.build import answers, reference
from toolkit.canaries import CanarySet
from toolkit.config.load import LoadedDeployment
from toolkit.config.models import Canary, HttpRequest, Service
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.files import json_object
from toolkit.runtimes import canary_reach, flash, generation_canary
from toolkit.runtimes.canary_reach import Served

Report = Callable[[str], None]


@dataclass(frozen=True)
class World:
    """Where references are kept and made; ``available_bytes`` of host memory may be taken for it."""

    folder: Path
    hash_cache: Path
    available_bytes: int
    environ: Mapping[str, str]
    run: reference.Run = reference.run_child


def this_world(folder: Path, hash_cache: Path) -> World:
    """This machine as it is now."""
    return World(folder, hash_cache, psutil.virtual_memory().available, os.environ)


def of_deployment(
    deployment: LoadedDeployment, found: Paths, engines: Mapping[str, Engine], world: World, report: Report
) -> dict[str, Mapping[str, Any]]:
    """The recorded answers by service; what is compared with less than a reference is told.

    Raises: ManyFaultsError with every service of which nobody knows what is right, and what to write.
    """
    recorded: dict[str, Mapping[str, Any]] = {}
    faults: list[ToolkitError] = []
    for name in deployment.model.services:
        made = _tried(partial(_of_service, _Case(deployment, name, found, engines), world, report))
        if isinstance(made, ToolkitError):
            faults.append(made)
        elif made is not None:
            recorded[name] = made
    if faults:
        raise ManyFaultsError(tuple(faults))
    return recorded


def foresee(deployment: LoadedDeployment, found: Paths, engines: Mapping[str, Engine], world: World) -> None:
    """Raises ManyFaultsError with every service that ``of_deployment`` would refuse, as far as that is seen beforehand.

    ``engines``: those that are still to be built tell their checkpoint at most. Nothing is made or written.
    """
    cases = [_Case(deployment, name, found, engines) for name in deployment.model.services]
    tried = [_tried(partial(_foreseen, case, world)) for case in cases if case.must_know and not _carried(case)]
    if faults := tuple(fault for fault in tried if isinstance(fault, ToolkitError)):
        raise ManyFaultsError(faults)


def _foreseen(case: _Case, world: World) -> Mapping[str, Any] | None:
    try:
        answers.foresee(_asked(case), world.folder, available_bytes=world.available_bytes)
    except ToolkitError as fault:
        if fault.code != "no_reference":
            raise _placed(case, fault) from fault
        return _without(case, world, fault, lambda _: None)
    return None


def _tried(make: Callable[[], Mapping[str, Any] | None]) -> Mapping[str, Any] | ToolkitError | None:
    try:
        return make()
    except ToolkitError as fault:
        return fault


def _of_service(case: _Case, world: World, report: Report) -> Mapping[str, Any] | None:
    if case.service.runtime == "flash":
        return _embedding(case, world)
    if isinstance(case.service.canary, HttpRequest):
        return None  # it says itself what is right
    return _generation(case, world, report) if case.generates else None


@dataclass(frozen=True)
class _Case:
    """One service of a deployment, and what it serves."""

    deployment: LoadedDeployment
    name: str
    found: Paths
    engines: Mapping[str, Engine]

    @property
    def service(self) -> Service:
        return self.deployment.model.services[self.name]

    @property
    def served(self) -> Served:
        engine = self.engines.get(self.service.engine or "")
        paths = self.found.engines.get(self.service.engine or "")
        recipe = paths.recipe.model if paths is not None else None
        config = json_object(self.folder / "config.json") if self.folder is not None else None
        return Served(engine.facts if engine is not None else None, recipe, config)

    @property
    def folder(self) -> Path | None:
        """The model's folder in the format of Hugging Face."""
        return self.found.source(self.name, self.service)

    @property
    def generates(self) -> bool:
        """An engine of our own has recorded answers: a set is asked of it only where it shares prefixes."""
        recipe = self.served.recipe
        shares = recipe is not None and recipe.kv_cache.reuse and recipe.fmha == "enable"
        return self.service.runtime in canary_reach.GENERATIVE or (self.service.runtime == "torch" and shares)

    @property
    def unfused(self) -> bool:
        """Whether its attention is the kind whose answers go wrong silently: then somebody must know the right ones."""
        recipe, plugins = self.served.recipe, (self.served.engine or {}).get("plugin_config")
        built = isinstance(plugins, Mapping) and plugins.get("context_fmha") is False
        asked = self.service.fmha == "disable" or self.service.attention == "vanilla"
        return built or asked or (recipe is not None and recipe.fmha == "disable")

    @property
    def must_know(self) -> bool:
        """Whether it may only be served where somebody knows what is right, and does not say so itself."""
        says = isinstance(self.service.canary, HttpRequest) or self.canary.expected is not None
        return self.generates and self.unfused and not says

    @property
    def canary(self) -> Canary:
        return generation_canary.written(self.service, self.served.recipe)

    @property
    def prompts(self) -> tuple[str, ...]:
        """One where somebody wrote it, else several to choose from."""
        return (self.canary.prompt,) if self.canary.model_fields_set & {"prompt", "expected"} else canaries.PROMPTS

    def pythons(self) -> tuple[Path, ...]:
        """The service's own first; one inside an image cannot be started from here."""
        environment = self.deployment.model.environments.get(self.service.environment or "")
        own = () if environment is not None and environment.image is not None else (self.found.pythons[self.name],)
        return (*own, Path(sys.executable))


def _embedding(case: _Case, world: World) -> Mapping[str, Any]:
    pythons = [case.found.pythons[case.name], Path(sys.executable)]
    return reference.ensure(
        case.found.models[case.name], flash.canary_prompt(case.service), pythons, world.folder,
        hash_cache=world.hash_cache, environ=world.environ, run=world.run,
    )  # fmt: skip


def _generation(case: _Case, world: World, report: Report) -> Mapping[str, Any]:
    """The canary set of a service: with references, or where none can be made as far as repeats go.

    A person's word is enough where attention is fused; where it isn't, answers go wrong silently on long prompts, of
    which that word says nothing.
    """
    if case.canary.expected is not None and not case.unfused and case.service.runtime != "torch":
        reach = canary_reach.reach(case.service, case.served)
        return canaries.to_document(repeats_only(case.canary, reach, "the service says itself what is right"))
    if carried := _carried(case):
        return carried
    try:
        made = _recorded(case, world, report)
        _check_decided(case, canaries.of_document(made))
        return made
    except ToolkitError as fault:
        if fault.code != "no_reference":
            raise _placed(case, fault) from fault
        return _without(case, world, fault, report)


def _check_decided(case: _Case, found: CanarySet) -> None:
    """Raises ToolkitError where an unfused service could give any answer to every prompt."""
    sure = any(canaries.decided(reference, found.bound) for reference in found.references.values())
    if case.unfused and case.canary.expected is None and not sure:
        raise _no_reference("the model is undecided about the first token after every prompt")


def _without(case: _Case, world: World, fault: ToolkitError, report: Report) -> Mapping[str, Any]:
    """What is asked where plain transformers say nothing: what a fused engine said, else that repeats agree."""
    why = fault.details.get("why", fault.what)
    repeats = repeats_only(case.canary, canary_reach.reach(case.service, case.served), why)
    if (told := fused_answers.find(world.folder, case.served.engine, repeats)) is not None:
        report(f"{case.name}: right answers are {told.source}: {why}")
        return canaries.to_document(told)
    if case.canary.expected is not None or case.service.runtime == "torch":
        report(f"{case.name}: only its canary and that repeats agree are proven before READY: {why}")
    elif case.unfused:
        raise _placed(case, fault) from fault
    else:
        report(f"warning: {case.name}: only that repeats agree is proven before READY: {why}. {fault.hint}")
    return canaries.to_document(repeats)


def _carried(case: _Case) -> Mapping[str, Any] | None:
    """The set that was recorded when the engine was built, where it asks what the service asks."""
    document = (case.served.engine or {}).get("canary_set")
    try:
        found = canaries.of_document(document) if isinstance(document, Mapping) else None
    except ValueError:
        return None
    if found is None or found.prompts[0].text not in case.prompts:
        return None
    chunked = canary_reach.chunked_prefill(case.service)
    prompts = tuple(prompt for prompt in found.prompts if chunked or prompt.guard != "chunked_prefill")
    return canaries.to_document(replace(found, prompts=prompts))


def _asked(case: _Case) -> answers.Asked:
    """What is to be recorded. Raises: ToolkitError ``no_reference`` when nothing can be."""
    folder = case.folder
    if folder is None:
        raise _no_reference("its model's folder in the format of Hugging Face is not named")
    if how := canary_reach.quantized(case.service, case.served):
        what = f"it is quantised ({how}), and by how much its right answers differ from the plain model's is not known"
        raise _no_reference(what)
    return answers.Asked(
        folder,
        case.prompts,
        case.canary.max_tokens,
        canary_reach.reach(case.service, case.served),
        canary_reach.dtype(case.service, case.served, answers.stored_dtype(folder)),
    )


def _recorded(case: _Case, world: World, report: Report) -> Mapping[str, Any]:
    return answers.ensure(
        _asked(case), case.pythons(), world.folder, available_bytes=world.available_bytes,
        hash_cache=world.hash_cache, environ=world.environ, run=world.run, report=report,
    )  # fmt: skip


def repeats_only(canary: Canary, reach: canaries.Reach, why: str) -> CanarySet:
    """The set without right answers: each prompt is asked twice, and the two must agree."""
    first, *others = canaries.canary_set(canary.prompt, **asdict(reach))
    return canaries.settle(CanarySet((first.of(canary.max_tokens), *others), {}, 0.0, f"none: {why}"))


def _no_reference(why: str) -> ToolkitError:
    hint = "Write 'canary: {prompt: …, expected: …}' for the service."
    return ToolkitError(f"no right answers can be recorded: {why}", None, hint, code="no_reference", why=why)


def _placed(case: _Case, fault: ToolkitError) -> ToolkitError:
    """The fault where the service would say what is right."""
    return fault.at(case.deployment.where(f"services.{case.name}.canary"))
