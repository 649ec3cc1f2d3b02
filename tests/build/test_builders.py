from __future__ import annotations

import pytest

from tests.build.conftest import Bench
from toolkit.build import ensure
from toolkit.config import load
from toolkit.errors import ToolkitError


def test_a_trtllm_recipe_is_refused_as_not_in_this_version(bench: Bench) -> None:
    path = bench.folder / "recipe.yaml"
    path.write_text("version: 1\nname: tiny\nbuilder: trtllm\ncheckpoint: model\n")
    with pytest.raises(ToolkitError, match="not in this version yet") as caught:
        ensure(load.recipe(path), bench.python, bench.store)
    assert "recipe.yaml:3 builder" in str(caught.value.where)
