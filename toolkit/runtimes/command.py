"""``command``: any program that answers HTTP on its port."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from toolkit.config.models import Canary, HttpRequest, Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.names import suggestion
from toolkit.runtimes import environment
from toolkit.runtimes.base import (
    PRELOAD_WINDOW_S,
    Assignment,
    CanaryCheck,
    Context,
    Generation,
    HttpProbe,
    Launch,
    LogProbe,
    Probes,
    Program,
    Traits,
)
from toolkit.runtimes.service_notes import notes_of
from toolkit.units import format_cpu_list

PLACEHOLDERS = ("port", "host", "model", "cpus", "python", "logs")
# {{word}} is a literal {word}; other braces (JSON, say) are left as they are.
_WORD = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


class CommandRuntime:
    """``argv`` with {port}, {host}, {model}, {cpus}, {python}, {logs}; it answers everybody as soon as it listens."""

    name = "command"
    looks_inside = False
    traits = Traits(
        can_drain=False,
        answers_before_ready=True,
        memory_knob="none: write it in 'argv'",
        readiness="'ready.path' or 'ready.log', then the canary",
        warmup="'warmup_requests'",
        affinity="keeps the mask it was given unless it changes it itself",
        traps=("a command line that does not take {port} can't learn the port that it is given",),
    )

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        environment.check(name, service.env)
        _check_argv(name, service)
        if service.options:
            raise ToolkitError(
                "runtime 'command' has no options",
                f"services.{name}.options",
                "Write them in 'argv'.",
                code="unsupported",
            )
        if service.ready.path is not None and service.ready.log is not None:
            raise ToolkitError(
                "'path' and 'log' exclude each other", f"services.{name}.ready", "Keep one.", code="bad_ready"
            )
        _check_canary(name, service)

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """None: the program is 'argv'."""
        return None

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources."""
        service = context.service
        values = {
            "port": str(assignment.port),
            "host": service.host,
            "model": str(context.model_dir),
            "cpus": format_cpu_list(assignment.cpus),
            "python": str(context.python),
            "logs": str(context.log_dir),
        }
        return Launch(
            argv=tuple(fill(argument, values) for argument in service.argv),
            env=environment.build(context, assignment),
            probes=_probes(service),
            preload_window_s=service.preload_window or PRELOAD_WINDOW_S,
            notes=(*notes_of(service), *_notes(service)),
            rank_logs="logs" in _words(service),
        )


def fill(argument: str, values: Mapping[str, str]) -> str:
    """The argument with its placeholders filled in.

    Raises: KeyError for an unknown placeholder.
    """
    return _WORD.sub(lambda match: f"{{{match[1]}}}" if match[1] else values[match[2]], argument)


def _words(service: Service) -> list[str]:
    """The placeholders that its ``argv`` uses."""
    return [match[2] for argument in service.argv for match in _WORD.finditer(argument) if match[2]]


def canary_request(service: Service) -> HttpRequest | None:
    """The service's canary, or else a GET of its ready path; None when it has neither."""
    if isinstance(service.canary, HttpRequest):
        return service.canary
    return None if service.ready.path is None else HttpRequest(path=service.ready.path)


def _probes(service: Service) -> Probes:
    request = canary_request(service)
    canary = None if request is None else _http_probe(request)
    log = service.ready.log
    path = service.ready.path
    loaded = HttpProbe(path) if path is not None else LogProbe(log) if log is not None else canary
    return Probes(
        loaded=loaded,
        live=HttpProbe(path) if path is not None else None,
        warmup=tuple(_http_probe(request) for request in service.warmup_requests),
        canary=None if canary is None else CanaryCheck(request=canary),
        generation=None if canary is None else Generation("request", canary.path, request=canary),
    )


def _http_probe(request: HttpRequest) -> HttpProbe:
    return HttpProbe(
        path=request.path,
        method=request.method,
        body=request.body,
        expect_status=request.status,
        expect_text=request.contains,
    )


def _check_argv(name: str, service: Service) -> None:
    where = f"services.{name}.argv"
    words = _words(service)
    for word in words:
        if word not in PLACEHOLDERS:
            near = suggestion(word, PLACEHOLDERS) or ""
            hint = f"{near} Write {{{{{word}}}}} for the literal text.".strip()
            raise ToolkitError(f"unknown placeholder '{{{word}}}'", where, hint, code="unknown_placeholder")
    if "model" in words and service.model is None:
        raise ToolkitError(
            "'{model}' stands in argv, but 'model' is missing", where, "Write 'model: PATH'.", code="no_model"
        )


def _check_canary(name: str, service: Service) -> None:
    where = f"services.{name}.canary"
    if isinstance(service.canary, Canary):
        raise ToolkitError(
            "the canary of a 'command' service is an HTTP request",
            where,
            'Write for example canary: {method: POST, path: /v1/generate, body: {…}, contains: "Paris"}.',
            code="bad_canary",
        )
    if canary_request(service) is None:
        raise ToolkitError(
            "nothing tells whether this service answers rightly",
            where,
            'Write canary: {path: /…, contains: "…"}, or at least ready: {path: /…}.',
            code="no_canary",
        )


def _notes(service: Service) -> tuple[str, ...]:
    notes = ["it can't be drained: its last requests end when it stops"]
    if service.port is None and not any("{port}" in argument for argument in service.argv):
        notes.append("nothing in argv tells the program its port: write {port} there, or the port it uses as 'port'")
    if not isinstance(service.canary, HttpRequest):
        notes.append(f"its canary only asks whether GET {service.ready.path} answers 200; 'canary' can ask for more")
    elif service.canary.contains is None:
        notes.append(f"its canary only looks at the status of {service.canary.path}; 'contains' can look at the answer")
    return tuple(notes)
