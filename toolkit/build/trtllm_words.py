"""A recipe's ``options`` as words of ``trtllm-build``, checked against the release's own options. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.build.trtllm_versions import BuildRelease, known_releases
from toolkit.config.load import LoadedRecipe
from toolkit.errors import ToolkitError
from toolkit.facts import build_options
from toolkit.facts.options import Option
from toolkit.runtimes.words import BadValueError, unknown, words_of

# Said elsewhere in the recipe, or kept by coexist itself.
ELSEWHERE = {
    "--checkpoint_dir": "Write it as 'checkpoint'.",
    "--output_dir": "coexist chooses it: the engine store.",
    "--model_config": "Write 'checkpoint'.",
    "--build_config": "Write the options themselves; what such a file overrides differs between releases.",
    "--max_batch_size": "Write it as 'limits.max_batch_size'.",
    "--max_input_len": "Write it as 'limits.max_input_len'.",
    "--max_seq_len": "Write it as 'limits.max_seq_len'.",
    "--max_output_len": "Write 'limits.max_seq_len'.",
    "--max_num_tokens": "Write it as 'limits.max_num_tokens'.",
    "--tokens_per_block": "Write it as 'kv_cache.tokens_per_block'.",
    "--kv_cache_type": "Write it as 'kv_cache.type'.",
    "--paged_kv_cache": "Write 'kv_cache.type'.",
    "--context_fmha": "Write it as 'fmha'.",
    "--tp_size": "Write it as 'tp_size'; it belongs to the conversion.",
    "--pp_size": "Write it as 'pp_size'; it belongs to the conversion.",
    "--cp_size": "It belongs to the conversion.",
    "--timing_cache": "coexist keeps one per release and GPU.",
    "--input_timing_cache": "coexist keeps one per release and GPU.",
    "--output_timing_cache": "coexist keeps one per release and GPU.",
    "--dry_run": "Such a build makes no engine. 'coexist build --dry-run' shows the commands.",
}
# Of this builder, not of trtllm-build.
OURS = ("workspace_budget",)
_FROM_ONE = ("--workers", "--max_beam_width")


@dataclass(frozen=True)
class Given:
    """An option that the recipe sets: its key, the words of its value (none: a flag), and where it is written."""

    key: str
    words: tuple[str, ...]
    where: str | None

    @property
    def value(self) -> str | None:
        return " ".join(self.words) if self.words else None


def given(loaded: LoadedRecipe, release: BuildRelease) -> tuple[dict[str, Given], list[ToolkitError]]:
    """The recipe's options by their full name, and what is wrong with them."""
    found: dict[str, Given] = {}
    faults: list[ToolkitError] = []
    for key, value in loaded.model.options.items():
        where = loaded.where(f"options.{key}")
        option = None if key in OURS else release.table.find(_name(key))
        if key in OURS:
            continue
        if option is None:
            faults.append(_unknown(str(key), release, where))
        elif option.name in ELSEWHERE:
            faults.append(ToolkitError(f"'{key}' is no option here", where, ELSEWHERE[option.name], code="options"))
        elif option.name in found:
            faults.append(ToolkitError(f"'{key}' and '{found[option.name].key}' are the same option", where))
        elif not (option.kind == "flag" and value is False):
            try:
                found[option.name] = Given(key, _words(option, value), where)
            except BadValueError as bad:
                faults.append(ToolkitError(f"'{key}' {bad}", where, bad.hint, code="options"))
    return found, faults


def _name(key: object) -> str:
    """The name of an option that a key means, with dashes in it or underscores, and in front or not."""
    return "--" + str(key).lstrip("-").replace("-", "_")


def _words(option: Option, value: Any) -> tuple[str, ...]:
    if option.name in _FROM_ONE and value == 0 and value is not False:
        raise BadValueError("takes a whole number from 1, not 0")
    return words_of(option, value)


def _unknown(key: str, release: BuildRelease, where: str) -> ToolkitError:
    names = (name.removeprefix("--") for name in release.table.options if name not in ELSEWHERE)
    return unknown(
        key,
        where,
        program="trtllm-build",
        release=release.version,
        names=(*names, *OURS),
        others=releases_with(_name(key)),
        code="options",
    )


def releases_with(name: str) -> list[str]:
    """The releases whose trtllm-build has an option, oldest first."""
    tables: Mapping[str, Any] = {each: build_options(each) for each in known_releases()}
    return [each for each, table in tables.items() if table is not None and table.find(name)]
