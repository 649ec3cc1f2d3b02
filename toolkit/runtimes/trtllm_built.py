"""What an engine of TensorRT-LLM was built as, by its manifest or its recipe. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from toolkit.config.models import Recipe
from toolkit.errors import ToolkitError
from toolkit.runtimes.base import Context


def public(version: str) -> str:
    """A version without its local part, which tells no other release."""
    try:
        return Version(version).public
    except InvalidVersion:
        return version


def release(told: Mapping[str, Any]) -> str | None:
    """The release that built it; None: its manifest does not tell."""
    built = told.get("release") or told.get("trtllm_version")
    return None if built is None else public(str(built))


def fmha(told: Mapping[str, Any], recipe: Recipe | None) -> str | None:
    """Whether its context attention is fused, as ``fmha`` of a recipe says it; None: nothing tells."""
    plugins = told.get("plugin_config")
    built = plugins.get("context_fmha") if isinstance(plugins, Mapping) else None
    if isinstance(built, bool):
        return "enable" if built else "disable"
    return str(built) if built in ("enable", "disable") else recipe.fmha if recipe is not None else None


def fmha_faults(context: Context, told: Mapping[str, Any]) -> Iterator[ToolkitError]:
    """The fault of a service that asks for other attention than its engine has."""
    asked, built = context.service.fmha, fmha(told, context.recipe)
    if asked is not None and built is not None and asked != built:
        what = f"the service asks for 'fmha: {asked}', its engine is built with 'fmha: {built}'"
        hint = "Change the recipe and build again."
        yield ToolkitError(what, f"services.{context.name}.fmha", hint, code="fmha_mismatch")
