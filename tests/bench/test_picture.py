from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.bench.test_report import boots
from toolkit.bench import picture, report


def drawn(**conditions):
    return picture.svg(report.document("a<b>&c", conditions, {name: len(made) for name, made in conditions.items()}))


def parsed(**conditions):
    return ET.fromstring(drawn(**conditions))  # noqa: S314  our own


def test_the_drawing_is_well_formed_and_stands_alone():
    root = parsed(cold=boots(), full=boots())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "href" not in ET.tostring(root, encoding="unicode")


def test_bars_are_as_long_as_their_stages():
    root = parsed(full=boots())
    wide = {}
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        title = box.find("{http://www.w3.org/2000/svg}title")
        if title is not None:
            wide[title.text.split()[0]] = float(box.get("width"))
    assert wide["PRIME"] / wide["PRELOAD"] == pytest.approx(3.0 / 2.0, rel=1e-2)


def test_first_tokens_that_nobody_measured_are_not_drawn():
    assert "polyline" in drawn(full=boots())
    assert "polyline" not in drawn(full=boots(proof_ms=[]))
