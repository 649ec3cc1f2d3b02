from __future__ import annotations

import json

import pytest

from toolkit.config import schema
from toolkit.errors import ToolkitError


@pytest.mark.parametrize("kind", schema.KINDS)
def test_each_schema_is_json_with_its_dialect_and_a_title(kind: str) -> None:
    document = json.loads(json.dumps(schema.document(kind)))
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert document["title"].startswith("coexist ")
    assert document["additionalProperties"] is False


def test_what_a_person_writes_with_a_unit_is_text_in_the_schema() -> None:
    service = schema.document("deployment")["$defs"]["Service"]["properties"]
    assert {"type": "string"} in service["gpu_memory"]["anyOf"]
    assert {"type": "string"} in service["cpus"]["anyOf"]


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(ToolkitError, match="Did you mean 'deployment'"):
        schema.document("deploymnt")


@pytest.mark.parametrize("kind", ["deployment", "recipe"])
def test_every_key_of_a_file_is_described(kind):
    document = schema.document(kind)
    for name, part in {"file": document, **document["$defs"]}.items():
        for key, value in part.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"


def test_defaults_are_written_as_a_person_writes_them():
    parts = schema.document("deployment")["$defs"]
    assert parts["Service"]["properties"]["grace"]["default"] == "10s"
    assert parts["Restart"]["properties"]["window"]["default"] == "10min"
