from __future__ import annotations

import pytest

from toolkit import runtimes
from toolkit.errors import ToolkitError


@pytest.mark.parametrize("name", ["torch", "flash", "command", "vllm", "sglang", "transformers"])
def test_supported_programs_are_found_by_name(name: str):
    assert runtimes.get(name).name == name


def test_another_program_is_refused_with_what_is_supported():
    with pytest.raises(ToolkitError) as caught:
        runtimes.get("lmdeploy")
    assert caught.value.code == "runtime_unsupported"
    assert caught.value.what == "runtime 'lmdeploy' isn't supported by this version yet"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Supported: command, flash, sglang, ")
    assert caught.value.hint.endswith("'command' runs any program.")
