"""The main job as one page: load, plan, build, launch."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toolkit import affinity, runtimes
from toolkit.assemble import (
    adoption,
    beside,
    build_machine,
    diagnosis,
    engines,
    first,
    fused_answers,
    kept,
    launches,
    needs,
    paths,
    placing,
    redeploy,
    references,
    reservation,
)
from toolkit.assemble.check import check_deployment
from toolkit.assemble.curl import curl
from toolkit.assemble.kept import Kept, Running
from toolkit.assemble.launches import Engine, Stage
from toolkit.assemble.programs import check_programs, installed, missing_noted
from toolkit.assemble.redeploy import Redeployment
from toolkit.assemble.reservation import Reservation
from toolkit.build import BuiltEngine
from toolkit.build.trtllm_adopt import Finding, adopt
from toolkit.build.trtllm_machine import Machine
from toolkit.compat.model import Finding as CheckFinding
from toolkit.config import init as first_deployment
from toolkit.config import load
from toolkit.config.load import LoadedDeployment
from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.home import Home
from toolkit.host import context, probe
from toolkit.host import record as host_record
from toolkit.host.model import Host
from toolkit.plan import document as plan_json
from toolkit.plan import planner
from toolkit.plan.model import Plan
from toolkit.reserve import Ledger, Owner, alone_on_gpu
from toolkit.runtimes.base import Launch, Program
from toolkit.store import Entry, Store, Use
from toolkit.supervise import client, notify, ports, starting
from toolkit.supervise.starting import At, Step, untold
from toolkit.supervise.state import StateFolder
from toolkit.supervise.supervisor import Supervisor

Report = Callable[[str], None]

_HOST_IS_FRESH_S = 5.0  # who holds memory and CPUs changes while something is built or recorded


def this_host() -> Host:
    """What this machine is. The first time on a GPU model, a CUDA context is made there to see what one takes."""
    contexts = context.Kept(Home.find().contexts, alone_on_gpu)
    return probe.probe(mempolicy_permitted=affinity.probe_mempolicy_permitted, context_bytes=contexts)


def plan_document(config: Path, home: Home, host_file: Path | None = None) -> dict[str, Any]:
    """The document of ``coexist plan --json``; with a recorded host nothing of this machine is consulted."""
    deployment = load.deployment(config)
    check_runtimes(deployment)
    recorded = host_record.load(host_file) if host_file else None
    found = paths.as_written(deployment) if recorded else paths.find(deployment, Store(home.root))
    host = recorded or this_host()
    stage = _stage_to_show(deployment, host, found, home)
    made = launches_of(deployment, stage)
    shown = made if recorded else missing_noted(deployment, made)
    commands = {name: (launch.argv, launch.own_env) for name, launch in shown.items()}
    return plan_json.document(launches.with_notes(stage, shown), commands)


def _stage_to_show(deployment: LoadedDeployment, host: Host, found: paths.Paths, home: Home) -> Stage:
    """Everything that launches are made of, with nothing built; of a recorded host's environments nothing is read.

    Raises: ToolkitError when it does not fit, or as ``described_engines`` does.
    """
    made = make_plan(deployment, host, found)
    described = {} if host.recorded else described_engines(deployment, found, home, host)
    programs = installed(deployment.model, found.pythons, os.environ, here=not host.recorded)
    return Stage(deployment.model, host, made, found, home, described, {}, os.environ, programs)


def check_runtimes(deployment: LoadedDeployment) -> None:
    """Raises ManyFaultsError with everything that a service asks of a program that does not offer it."""
    services = deployment.model.services
    placing.of_services(deployment, lambda name: runtimes.get(services[name].runtime).check(name, services[name]))


def launches_of(deployment: LoadedDeployment, stage: Stage) -> dict[str, Launch]:
    """Every service's process, to be shown.

    Raises: ManyFaultsError with everything that a service asks of an installed release that does not offer it.
    """
    return placing.of_services(deployment, lambda name: launches.launch(stage, name, launches.OPENS_NOTHING))


def make_plan(
    deployment: LoadedDeployment,
    host: Host,
    found: paths.Paths,
    staying: Mapping[str, Kept] = MappingProxyType({}),
) -> Plan:
    """The plan on what other deployments of this host leave; for a recorded host, on all of it.

    ``staying``: services of this one that run, and are not moved.

    Raises: ToolkitError that says which resource is short, where the deployment's file asks for it.
    """
    wanted = needs.read(deployment.model, found)
    try:
        if host.recorded:
            return planner.make(deployment.model, host, wanted)
        held = Ledger.of_this_host().grants()
        taken = ports.taken()
        return beside.make(deployment.model, host, wanted, held=held, ports_taken=taken, staying=staying)
    except ToolkitError as refusal:
        raise placing.placed(deployment, refusal) from None


def check(deployment: LoadedDeployment, host: Host, home: Home, report: Report) -> None:
    """Warnings are told; what was judged before is remembered.

    Raises: ManyFaultsError with every reason why these processes cannot live here.
    """
    # An engine in the store that no longer fits is made anew: it is no reason not to start.
    found = check_deployment(deployment, host, home, engines={})
    for finding in found.findings:
        if finding.severity == "warning":
            report(f"warning: {finding.what} (coexist check --explain {finding.id})")
    errors = [finding for finding in found.findings if finding.severity == "error"]
    if errors:
        raise ManyFaultsError(tuple(_refusal(finding) for finding in errors))


def _refusal(finding: CheckFinding) -> ToolkitError:
    hint = finding.fix or f"See 'coexist check --explain {finding.id}'."
    return ToolkitError(f"{finding.what}: {finding.why}", finding.subject, hint, code=finding.id)


def build_engines(
    deployment: LoadedDeployment, found: paths.Paths, store: Store, report: Report, host: Host, *, at: At = untold
) -> dict[str, Engine]:
    """Every engine of the deployment, made or reused; the host is looked at again once something was built."""
    ready: dict[str, Engine] = {}
    machine: engines.AskMachine = partial(build_machine.of, host)
    for name, wanted in engines.of_deployment(deployment, found).items():
        at(Step("build", name))
        built = engines.ensure(wanted, store, report, machine)
        ready[name] = _engine(built)
        for text in built.warnings:
            report(f"engine '{name}': {text}")
        if built.reused:
            report(f"reused {built.path}")
        else:
            machine = this_build_machine
    return ready


def _engine(built: BuiltEngine) -> Engine:
    return Engine(built.path, built.fingerprint, built.info, tuple(built.warnings))


def build_file(
    file: Path,
    home: Home,
    report: Report,
    *,
    only: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    trtllm_version: str | None = None,
    at: At = untold,
) -> list[BuiltEngine]:
    """The engines of a deployment or of one recipe, made, reused or (``dry_run``) described.

    ``trtllm_version``: describe them as with that TensorRT-LLM, which need not be installed.

    Raises: ToolkitError, also when there is no engine ``only``.
    """
    store = Store(home.root if dry_run else home.prepared().root)
    wanted = engines.of_file(file, only, what_if=trtllm_version is not None)
    if trtllm_version is not None:
        engines.check_what_if(file, wanted, dry_run)
    if dry_run:
        return [engines.describe(each, store, this_build_machine, trtllm_version) for each in wanted]
    return [_built(each, store, report, force, at) for each in wanted]


def _built(wanted: engines.Wanted, store: Store, report: Report, force: bool, at: At) -> BuiltEngine:
    at(Step("build", wanted.recipe.model.name))
    return engines.ensure(wanted, store, report, this_build_machine, force=force)


def this_build_machine() -> Machine:
    """This machine as a build sees it."""
    return build_machine.of(this_host())


def adopt_engine(
    folder: Path, home: Home, *, name: str | None, config: Path | None, engine: str | None, python: Path | None
) -> tuple[Entry, tuple[Finding, ...]]:
    """An engine that somebody else built, judged and copied into the store.

    Raises: ToolkitError when it cannot be served here; nothing is adopted then.
    """
    around = adoption.surroundings(this_host(), os.environ, config=config, engine=engine, python=python)
    return adopt(folder, Store(home.prepared().root), around, name)


def described_engines(deployment: LoadedDeployment, found: paths.Paths, home: Home, host: Host) -> dict[str, Engine]:
    """Where each engine is or will be; nothing is built.

    Raises: ToolkitError when one cannot be built, or could be and then not be served.
    """
    store, machine = Store(home.root), partial(build_machine.of, host)
    wanted = engines.of_deployment(deployment, found)
    described = {name: _engine(engines.describe(each, store, machine)) for name, each in wanted.items()}
    references.foresee(deployment, found, described, _references(home))
    return described


def prepare(deployment: LoadedDeployment, home: Home, report: Report, at: At = untold) -> Stage:
    """Everything that a start needs and that takes nothing from anybody: plan, engines, right answers.

    What outlived its supervisor and is wanted as it is stays where it is. ``at`` is told each step, and so is whoever
    asks for the status, until ``started``.

    Raises: ToolkitError; nothing has been started or granted then.
    """
    check_runtimes(deployment)
    folder = StateFolder(home.prepared().state(deployment.model.name))
    folder.refuse_running(deployment.model.name)
    with starting.recorded(folder.path, deployment.model, at) as tell:
        tell(Step("plan"))
        host, found = this_host(), paths.find(deployment, Store(home.root))
        # Before a long build: does it fit at all, and would its programs take what they are to be given?
        stage = _stage_to_show(deployment, host, found, home)
        check_programs(deployment, launches_of(deployment, stage))
        programs, running = stage.programs, folder.left()
        return _prepared(deployment, home, report, host, found, programs=programs, running=running, at=tell)


def _prepared(
    deployment: LoadedDeployment,
    home: Home,
    report: Report,
    host: Host,
    found: paths.Paths,
    *,
    programs: Mapping[str, Program | None],
    running: Mapping[str, Running],
    at: At = untold,
) -> Stage:
    """The stage; of the services that run, those that are wanted as they are stay where they are."""
    looked_s = time.monotonic()
    ready, recorded = _made(deployment, home, report, host, found, at=at)
    at(Step("launch"))
    host = host if time.monotonic() - looked_s < _HOST_IS_FRESH_S else this_host()
    prints = launches.fingerprints(ready)
    wanted = {name: kept.spec(deployment.model, found, prints, name) for name in deployment.model.services}
    made = make_plan(deployment, host, found, kept.still_wanted(running, wanted))
    stage = Stage(deployment.model, host, made, found, home, ready, recorded, os.environ, programs)
    check_programs(deployment, launches_of(deployment, stage))  # what cannot do what is asked says so now
    return stage


def _made(
    deployment: LoadedDeployment, home: Home, report: Report, host: Host, found: paths.Paths, *, at: At
) -> tuple[dict[str, Engine], dict[str, Mapping[str, Any]]]:
    """Engines by name and right answers by service, made or reused, of a deployment that passes the check."""
    store = Store(home.root)
    at(Step("check"))
    check(deployment, host, home, report)
    ready = build_engines(deployment, found, store, report, host, at=at)
    at(Step("answers"))
    return ready, references.of_deployment(deployment, found, ready, _references(home), report)


def _references(home: Home) -> references.World:
    return references.this_world(home.references, Store(home.root).hash_cache)


@asynccontextmanager
async def started(
    stage: Stage, on_change: Callable[[Supervisor], None], *, follows: bool = True
) -> AsyncIterator[Supervisor]:
    """The deployment, granted its resources and starting; when the block ends nothing of it is left.

    ``follows``: whoever asks can make it follow a changed file.

    Raises: ToolkitError when another deployment holds what it needs, or a port is taken.
    """
    name, ledger, store = stage.deployment.name, Ledger.of_this_host(), Store(stage.home.root)
    folder = StateFolder(stage.home.state(name))
    with ExitStack() as in_use:
        in_use.callback(starting.forget, folder.path)
        left = {name: record.identity for name, record in folder.left().items()}
        totals = redeploy.totals(stage, ledger.grants())
        held = Reservation(ledger, Owner.current(name), redeploy.requests(stage), totals, adopted=left)
        in_use.callback(held.release)
        for engine in stage.engines.values():
            in_use.enter_context(_hold(store, engine))
        again = Redeployment(stage, held, partial(_again, stage.home), ledger.grants, in_use, partial(_hold, store))
        async with reservation.tended(held) as noted, notify.tended(os.environ) as told:
            supervisor = _supervisor(again, follows, noted, told, on_change)
            await supervisor.start()
            starting.forget(folder.path)
            try:
                async with diagnosis.read_ahead(supervisor):
                    yield supervisor
            finally:
                await supervisor.close()


def _again(home: Home, config: Path, running: Mapping[str, Running]) -> Stage:
    """The stage of another file for the deployment that runs here."""
    deployment = load.deployment(config)
    check_runtimes(deployment)
    found = paths.find(deployment, Store(home.root))
    programs = installed(deployment.model, found.pythons, os.environ)
    return _prepared(deployment, home, lambda _: None, this_host(), found, programs=programs, running=running)


def _supervisor(again: Redeployment, follows: bool, *told: Callable[[Supervisor], None]) -> Supervisor:
    stage, held = again.stage, again.held

    def on_change(supervisor: Supervisor) -> None:
        fused_answers.remember(again.stage, supervisor.proofs())
        for tell in told:
            tell(supervisor)

    return Supervisor(
        stage.deployment.name,
        launches.service_runs(stage),
        stage.home.state(stage.deployment.name),
        wrap=affinity.wrap,
        control_port=stage.deployment.control_port,
        diagnose=again.diagnose,
        reserve=held.hold,
        free_memory=held.free_memory,
        on_change=on_change,
        on_death=stage.deployment.on_supervisor_death,
        keep=held.keep,
        reload=again.apply if follows else None,
    )


def redeploy_running(config: Path, home: Home, report: Report, at: At = untold) -> dict[str, Any]:
    """What the deployment that runs had different from the file; it has begun to follow the file.

    Engines and right answers are made here, so that the supervisor finds them.

    Raises: ToolkitError when the file is not sound, or does not fit beside what stays; then nothing has changed.
    """
    deployment = load.deployment(config)
    check_runtimes(deployment)
    host, found = this_host(), paths.find(deployment, Store(home.root))
    described_engines(deployment, found, home, host)  # what cannot be says so before a long build
    _made(deployment, home, report, host, found, at=at)
    return client.reload(home.state(deployment.model.name), config)


def _hold(store: Store, engine: Engine) -> Use:
    """A hold on a running engine, so that prune and ``--force`` leave its files alone."""
    entry = store.find(engine.fingerprint)
    if entry is None:
        raise ToolkitError(
            "the engine was removed meanwhile", str(engine.folder), "Start again.", code="engine_missing"
        )
    return store.use(entry)


def init(file: Path) -> tuple[ToolkitError, ...]:
    """Writes a first deployment for this host; comes back with what it names and is not in place yet.

    Raises: ToolkitError when the file exists.
    """
    first_deployment.write(file, first_deployment.render(this_host(), partial(first.sample, file)))
    return first.missing(file)


def requests_to_try(stage: Stage, control: str | None) -> list[str]:
    """A ``curl`` line for each service, and one for the whole."""
    shown = launches.launches(stage)
    lines = [curl(shown[each.name], each.port) for each in stage.plan.services]
    return [*lines, *([f"curl {control}/readyz"] if control else [])]
