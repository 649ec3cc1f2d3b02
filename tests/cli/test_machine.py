from __future__ import annotations

from pathlib import Path

TOPOLOGY = Path(__file__).resolve().parents[1] / "host" / "topology"


def test_the_host_document_is_what_is_recorded(coexist, tmp_path):
    recorded = coexist("host", "--json", "--record", tmp_path / "host.json")
    assert recorded.code == 0
    assert recorded.document["schema"] == 1
    assert recorded.document["cores"]


def test_a_topology_text_is_parsed_to_its_document(coexist):
    answer = coexist("host", "parse", TOPOLOGY / "two_3090_nv4_5900x.txt", "--json")
    assert answer.document["links"] == {"0-1": "NV4"}


def test_foreign_text_is_refused_with_the_reason(coexist, tmp_path):
    file = tmp_path / "poem.txt"
    file.write_text("roses are red\n")
    answer = coexist("host", "parse", file, "--json")
    assert answer.code == 1
    assert answer.error["what"]


def test_a_text_that_is_not_there_is_said(coexist, tmp_path):
    answer = coexist("host", "parse", tmp_path / "none.txt")
    assert answer.code == 1
    assert "none.txt" in answer.err
