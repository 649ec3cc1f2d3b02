from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.diagnose import demangle as module
from toolkit.diagnose.demangle import demangle, nested_names, short_name, string_abi

ERROR_OLD = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
ERROR_NEW = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"


def test_symbols_become_names() -> None:
    assert demangle("_ZN3c104cuda9SetDeviceEi") == "c10::cuda::SetDevice(int)"
    assert (
        short_name("_ZNK3c1017SymbolicShapeMeta18init_is_contiguousEv") == "c10::SymbolicShapeMeta::init_is_contiguous"
    )
    assert demangle("cublasLtCreate") == "cublasLtCreate"


def test_without_a_library_the_nested_names_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_library", lambda: None)
    assert demangle("_ZN3c104cuda9SetDeviceEi") == "c10::cuda::SetDevice"
    assert demangle("_Zbroken") == "_Zbroken"


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [(ERROR_OLD, "old"), (ERROR_NEW, "new"), ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", "old"),
     ("_ZNK12tensorrt_llm8executor8Response11getErrorMsgB5cxx11Ev", "new"), ("_ZN3c104cuda9SetDeviceEi", None)],
)  # fmt: skip
def test_the_string_in_a_symbol_tells_the_abi(symbol: str, abi: str | None) -> None:
    assert string_abi(symbol) == abi


@given(st.text(max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(demangle("_Z" + text.replace("\x00", "")), str)
    nested_names("_Z" + text)
