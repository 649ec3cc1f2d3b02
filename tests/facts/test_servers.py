from __future__ import annotations

import pytest

from toolkit import facts


@pytest.mark.parametrize(
    ("fact", "version", "expected"),
    [
        ("uuid_devices", "0.10.0", False),
        ("uuid_devices", "0.20.1", False),
        ("uuid_devices", "0.33.0", True),
        ("uuid_devices", "0.25.0", None),
        ("uuid_devices", None, None),
        ("serve_command", "0.4.2", False),
        ("serve_command", "0.33.0+cu129", True),
        ("attention_option", "0.12.0", False),
        ("attention_option", "0.13.0", True),
        ("of_another_kind", "0.33.0", None),
    ],
)
def test_what_a_release_of_vllm_does_is_known_where_a_row_says_it(
    fact: str, version: str | None, expected: bool | None
):
    assert facts.server_does("vllm", fact, version) is expected
