from __future__ import annotations

import pytest

from toolkit import runtimes
from toolkit.errors import ToolkitError


@pytest.mark.parametrize("name", ["torch", "flash", "command"])
def test_supported_programs_are_found_by_name(name: str):
    assert runtimes.get(name).name == name


@pytest.mark.parametrize("name", ["trtllm", "triton", "vllm", "sglang", "transformers"])
def test_programs_of_later_versions_are_refused_with_what_is_supported(name: str):
    with pytest.raises(ToolkitError) as caught:
        runtimes.get(name)
    assert caught.value.code == "runtime_unsupported"
    assert caught.value.what == f"runtime '{name}' isn't supported by this version yet"
    assert caught.value.hint == "Supported: command, flash, torch; 'command' runs any program."
