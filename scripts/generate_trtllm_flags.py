"""Writes the table of flags in docs/tensorrt-llm.md from the facts; ``--check`` only says whether it is current."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pages  # noqa: E402

from toolkit.build.trtllm_checkpoint import read  # noqa: E402
from toolkit.build.trtllm_options import Asked, Chosen, choose  # noqa: E402
from toolkit.build.trtllm_versions import build_release, known_releases  # noqa: E402
from toolkit.config import load  # noqa: E402
from toolkit.facts.options import build_tables  # noqa: E402

PAGE = ROOT / "docs" / "tensorrt-llm.md"
SCRIPT = Path(__file__).name
CHECKPOINT = {"architecture": "LlamaForCausalLM", "dtype": "bfloat16", "num_attention_heads": 32, "mapping": {}}


def main(argv: list[str]) -> int:
    """0 when the page is current, or was made so."""
    return pages.settle(PAGE, SCRIPT, pages.with_part(PAGE, SCRIPT, generated()), check="--check" in argv)


def generated() -> str:
    """How firm each table is, then the attention options of every release."""
    releases = known_releases()
    statuses = [(release, build_release(release).table) for release in releases]
    lines = ["| release | options read at | how firm |", "|---|---|---|"]
    lines += [f"| {release} | {table.read_at} | {table.status} |" for release, table in statuses]
    lines += [
        "",
        "| option | the release's default | `fmha: enable` writes | `fmha: disable` writes |",
        "|---|---|---|---|",
    ]
    written = {fmha: chosen_by_release(fmha) for fmha in ("enable", "disable")}
    for name in build_tables()["attention"]:
        default = spans(releases, lambda release, option=name: default_of(release, option))
        both = [
            spans(releases, lambda release, chosen=written[fmha], option=name: chosen[release].value(option))
            for fmha in ("enable", "disable")
        ]
        lines.append(f"| `{name}` | {default} | {both[0]} | {both[1]} |")
    return "\n".join(lines) + "\n"


def chosen_by_release(fmha: str) -> dict[str, Chosen]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CHECKPOINT))
        (folder / "recipe.yaml").write_text(f"version: 1\nname: x\nbuilder: trtllm\ncheckpoint: .\nfmha: {fmha}\n")
        loaded, checkpoint = load.recipe(folder / "recipe.yaml"), read(folder)
        return {each: choose(Asked(loaded, checkpoint, build_release(each))) for each in known_releases()}


def default_of(release: str, name: str) -> str | None:
    option = build_release(release).table.options.get(name)
    return None if option is None else "unset" if option.default is None else str(option.default)


def spans(releases: Iterable[str], value: Callable[[str], str | None]) -> str:
    """Values by runs of releases, absent ones left out: ``0.8.0 to 0.18.2 disable, 0.19.0 to 1.2.0 enable``."""
    runs = [(found, list(run)) for found, run in groupby(releases, key=value)]
    told = [f"{run[0]} to {run[-1]} {found}" if len(run) > 1 else f"{run[0]} {found}" for found, run in runs if found]
    return ", ".join(told) or "-"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
