"""What the walk over compile keys is told of adapters and experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolkit.runtimes import generative


@pytest.mark.parametrize(
    ("option", "names"),
    [
        (None, ()),
        ("sql=/adapters/sql", ("sql",)),
        (["sql=/a/sql", "chat=/a/chat", "sql=/again"], ("sql", "chat")),
        (['{"name": "sql", "path": "/a/sql"}'], ("sql",)),
        ([{"name": "sql", "path": "/a"}, {"lora_name": "chat", "lora_path": "/b"}], ("sql", "chat")),
        ([7, {"path": "/a"}], ()),
    ],
)
def test_adapters_are_known_by_name_however_they_are_listed(option: Any, names: tuple[str, ...]) -> None:
    assert generative.adapter_names(option) == names


def test_each_adapter_is_asked_once_as_its_program_wants_it() -> None:
    (probe,) = generative.adapter_requests(["sql"], lambda name: {"model": "base", "lora_path": name})
    assert probe.adapter == "sql"
    assert (probe.body["model"], probe.body["lora_path"]) == ("base", "sql")


@pytest.mark.parametrize(
    ("config", "unseen"),
    [
        ({"num_experts": 8}, True),
        ({"num_local_experts": 8}, True),
        ({"n_routed_experts": 64}, True),
        ({"text_config": {"num_experts": 8}}, True),
        ({"num_experts": 1}, False),
        ({"num_experts": None}, False),
        ({}, False),
    ],
)
def test_of_a_mixture_of_experts_nobody_can_say_which_ran(config: dict[str, Any], unseen: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert generative.has_experts(tmp_path) is unseen
