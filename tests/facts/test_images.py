from __future__ import annotations

import pytest

from toolkit.facts import image_versions
from toolkit.facts.images import FILE, triton
from toolkit.facts.load import HERE, parse


def test_no_release_has_two_rows() -> None:
    assert len(triton()) == len(parse((HERE / FILE).read_bytes())["rows"])


@pytest.mark.parametrize("host", ["nvcr.io/nvidia/", "registry.example.org:5000/mirror/", ""])
def test_an_image_of_triton_is_known_by_its_tag_wherever_it_is_kept(host: str) -> None:
    known = image_versions(f"{host}tritonserver:24.11-trtllm-python-py3")
    assert known["tensorrt-llm"] == "0.15.0"
    assert known["python"] == "3.10.12"
    assert known["tritonserver"] == "24.11"


@pytest.mark.parametrize(
    "image", ["nvcr.io/nvidia/tritonserver:24.11-py3", "tritonserver:99.01-trtllm-python-py3", "x"]
)
def test_of_other_images_nothing_is_known(image: str) -> None:
    assert image_versions(image) == {}
