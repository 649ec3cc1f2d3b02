"""``torch``: coexist's own server for an engine that ``builder: torch`` compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from toolkit import canaries
from toolkit.canaries import CanarySet
from toolkit.config.models import Canary, Service
from toolkit.environments.model import Environment
from toolkit.errors import ToolkitError
from toolkit.runtimes import builtin
from toolkit.runtimes.base import Assignment, CanaryCheck, Context, Generation, Launch, Program
from toolkit.runtimes.options import Option, argv

OPTIONS = {"max_queue": Option("--max-queue", "count")}


class TorchRuntime:
    """``run.py engine``: continuous batching, drains, nobody is answered before READY."""

    name = "torch"
    looks_inside = False
    traits = builtin.traits("one short prompt in every batch size and bucket")

    def check(self, name: str, service: Service) -> None:
        """Raises ToolkitError when the service asks for what this program does not offer."""
        builtin.check(name, service, OPTIONS)
        if service.attention != "auto":
            raise ToolkitError(
                "an engine's attention is chosen when it is built",
                f"services.{name}.attention",
                "Remove it; 'fmha: disable' in the recipe builds without fused attention.",
                code="unsupported",
            )

    def program(self, environment: Environment | None, python: Path, declared: Mapping[str, str]) -> Program | None:
        """None: the server is coexist's own."""
        return None

    def launch(self, context: Context, assignment: Assignment) -> Launch:
        """The process for this service on these resources.

        Raises: ToolkitError when the engine is not what the service asks for.
        """
        service, facts = context.service, context.engine_manifest
        _check_engine(context, assignment)
        model = context.recipe.name if context.recipe is not None else context.name
        generation = Generation(
            kind="completions",
            path="/v1/completions",
            model=model,
            max_input_tokens=builtin.number(facts, "limits", "max_input_len"),
            headers=builtin.headers(context),
            token_ids=True,
        )
        probes = builtin.probes(context.token, service.warmup, canary_check(context), generation)
        flags = ("--engine-dir", str(context.engine_dir), "--served-model-name", model)
        return builtin.launch(
            context,
            assignment,
            argv=("engine", *flags, *argv(context.name, service.options, OPTIONS)),
            probes=replace(probes, canary_set=_canary_set(context)),
            notes=(),
        )


def canary_check(context: Context) -> CanaryCheck:
    """The engine's recorded answer where the prompt is the engine's own, and the text the service expects.

    Raises: ToolkitError when the service changes the prompt without saying what is expected.
    """
    asked, recorded = context.service.canary, _recorded(context.engine_manifest)
    tokens = tuple(recorded.get("tokens", ()))
    # A text cut inside a character ends in the mark for that.
    text = str(recorded.get("text", "")).rstrip("\ufffd") or None
    if not isinstance(asked, Canary):
        return CanaryCheck(recorded.get("prompt", ""), max(len(tokens), 1), tokens or None, text)
    if not recorded or asked.prompt != recorded.get("prompt"):
        if recorded and asked.expected is None:
            raise _no_answer(context.name, recorded.get("prompt"))
        return CanaryCheck(asked.prompt, asked.max_tokens, expected_text=asked.expected)
    whole = asked.max_tokens >= len(tokens)
    return CanaryCheck(
        prompt=asked.prompt,
        max_tokens=asked.max_tokens,
        expected_tokens=tokens[: asked.max_tokens] or None,
        expected_text=asked.expected or (text if whole else None),
    )


def _canary_set(context: Context) -> CanarySet | None:
    """What reaches cached blocks, recorded for engines that share prefixes."""
    return canaries.of_document(context.reference) if context.reference is not None else None


def _no_answer(name: str, prompt: object) -> ToolkitError:
    return ToolkitError(
        "the engine has no recorded answer for this canary",
        f"services.{name}.canary",
        f"Write 'expected', or ask what was recorded: {prompt!r}.",
        code="no_canary",
    )


def _recorded(facts: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The engine's own canary: ``prompt``, ``tokens``, ``text``; empty before it is built."""
    canary = facts.get("canary") if facts is not None else None
    return canary if isinstance(canary, Mapping) else {}


def _check_engine(context: Context, assignment: Assignment) -> None:
    facts = context.engine_manifest or {}
    built_for, device = facts.get("device"), builtin.device(assignment)
    if built_for is not None and built_for != device:
        raise ToolkitError(
            f"its engine is compiled for {built_for}, the service runs on {device}",
            f"services.{context.name}.gpus",
            "Ask for a GPU with 'gpus: 1'." if built_for == "cuda" else "Remove 'gpus', or build the engine for cuda.",
            code="engine_device",
        )
    asked = context.service.fmha
    built = context.recipe.fmha if context.recipe is not None else None
    if asked is not None and built is not None and asked != built:
        raise ToolkitError(
            f"the service asks for 'fmha: {asked}', its engine's recipe says 'fmha: {built}'",
            f"services.{context.name}.fmha",
            "Change the recipe and build again.",
            code="fmha_mismatch",
        )
