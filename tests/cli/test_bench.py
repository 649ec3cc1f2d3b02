from __future__ import annotations

import os
import xml.etree.ElementTree as ET

import pytest

from tests.cli.deployments import Node
from tests.ports import free_port
from toolkit.cli.bench import _amount


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path)
    yield made
    made.end()


def test_a_bench_boots_reports_draws_and_leaves_nothing(node, tmp_path):
    file = node.deployment("tiny", free_port())
    drawing = tmp_path / "boot.svg"
    code, found = node.run(
        "bench", "cold-start", file, "--runs", "1", "--warmup", "single", "--load", "1s", "--plot", drawing
    )
    assert code in {0, 1}
    assert [each["name"] for each in found["conditions"]] == ["cold", "single"]
    service = found["conditions"][1]["services"][0]
    assert service["first_token_ms"]["first"] > 0
    assert service["load"]["failed"] == 0
    assert service["load"]["per_s"] > 0
    assert ET.parse(drawing)  # noqa: S314  our own
    assert node.grants() == []


def test_a_deployment_that_cannot_start_is_told_as_up_tells_it(coexist, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text('{"version": 1, "name": "bad", "services": {"x": {"runtime": "command"}}}')
    answer = coexist("bench", "cold-start", file, "--json")
    assert answer.code == 1
    assert answer.error["code"]


@pytest.mark.parametrize("place", ["gone/boot.svg", ".", "pipe"])
def test_a_picture_that_could_not_be_written_is_told_before_anything_is_booted(coexist, tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "fine.yaml"
    file.write_text('{"version": 1, "name": "fine", "services": {"x": {"runtime": "command", "argv": ["false"]}}}')
    answer = coexist("bench", "cold-start", file, "--plot", tmp_path / place, "--json")
    assert (answer.code, answer.error["code"]) == (1, "not_writable")
    assert answer.error["what"].startswith("cannot write the picture: ")


@pytest.mark.parametrize(
    ("of", "value", "text"),
    [
        ("first_token_p99_ms", 59.367, "59.4 ms"),
        ("to_80_percent_s", 5.442, "5.44 s"),
        ("resident_jitter", 0.023, "2.30%"),
        ("late_compiles", 0.0, "0"),
        ("first_over_steady", 1.2504, "1.250"),
        ("resident_jitter", None, "-"),
    ],
)
def test_a_target_is_told_with_its_unit(of, value, text):
    assert _amount(of, value) == text
