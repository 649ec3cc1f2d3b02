from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from toolkit.assemble import first

RECIPE = "version: 1\nname: llm\nbuilder: torch\nmodel: {}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "a checkout's: place" / "engines").mkdir(parents=True)
    recipe = tmp_path / "a checkout's: place" / "engines" / "llm.yaml"
    recipe.write_text(RECIPE.format("models/llm"), encoding="utf-8")
    return recipe.parents[1]


def deployment(folder: Path, recipe: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(
        "version: 1\nname: mine\nenvironments: {flash: {python: /nowhere/python}}\n"
        f"engines:\n  llm: {{recipe: {recipe}}}\n"
        "services:\n  llm: {runtime: torch, engine: llm}\n"
        "  embed: {runtime: flash, model: models/none, environment: flash}\n",
        encoding="utf-8",
    )
    return file


def test_a_file_inside_the_checkout_names_what_lies_there_as_it_is(checkout: Path) -> None:
    assert first.sample(checkout / "mine.yaml", "engines/llm.yaml", checkout) == "engines/llm.yaml"


def test_a_file_elsewhere_names_it_by_its_whole_path_in_quotes_where_yaml_wants_them(
    tmp_path: Path, checkout: Path
) -> None:
    told = first.sample(tmp_path / "mine.yaml", "engines/llm.yaml", checkout)
    assert yaml.safe_load(f"{{recipe: {told}}}") == {"recipe": str(checkout / "engines/llm.yaml")}


def test_without_a_checkout_the_name_stays_and_is_told_to_be_missing(tmp_path: Path) -> None:
    assert first.sample(tmp_path / "mine.yaml", "engines/llm.yaml", tmp_path / "none") == "engines/llm.yaml"


def test_all_that_is_not_in_place_is_told_with_its_line(tmp_path: Path) -> None:
    file = deployment(tmp_path, "engines/llm.yaml")
    assert [each.where for each in first.missing(file)] == [
        f"{file}:3 environments.flash.python",
        f"{file}:8 services.embed.model",
        f"{file}:5 engines.llm.recipe",
    ]


def test_what_a_recipe_misses_is_told_too(tmp_path: Path, checkout: Path) -> None:
    file = deployment(tmp_path, first.sample(tmp_path / "mine.yaml", "engines/llm.yaml", checkout))
    *_, last = first.missing(file)
    assert last.where == f"{checkout}/engines/llm.yaml:4 model"
    assert last.what == "'models/llm' does not exist"
