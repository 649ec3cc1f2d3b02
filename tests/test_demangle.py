from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import demangle as module
from toolkit.demangle import demangle, nested_names, readable, short_name, string_abi

NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
ERROR_OLD = "_ZN3c105ErrorC2ENS_14SourceLocationESs"
ERROR_NEW = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
SHORT = "c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::string const&)"


def test_a_mangled_name_is_read_as_a_person_would_write_it() -> None:
    assert demangle(OLD) == SHORT
    assert "std::__cxx11::basic_string" in demangle(NEW)


def test_both_abis_of_a_function_read_the_same() -> None:
    assert readable(OLD) == readable(NEW) == SHORT
    tagged, plain = "_ZN3c1014DeviceTypeNameB5cxx11ENS_10DeviceTypeEb", "_ZN3c1014DeviceTypeNameENS_10DeviceTypeEb"
    assert readable(tagged) == readable(plain) == "c10::DeviceTypeName(c10::DeviceType, bool)"


@pytest.mark.parametrize("name", ["", "memcpy", "_Z", "_Z\0", "_Z" + "N" * 100_000, "naïve"])
def test_what_is_no_mangled_name_stays_as_it_is(name: str) -> None:
    assert demangle(name) == name


@given(st.text(max_size=60))
def test_any_text_gives_some_name(tail: str) -> None:
    assert isinstance(readable("_Z" + tail), str)
    assert string_abi("_Z" + tail) in {"old", "new", None}


def test_without_a_demangler_the_qualified_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    demangle.cache_clear()
    monkeypatch.setattr(module, "system_demangler", lambda: None)
    assert demangle(OLD) == "c10::detail::torchCheckFail"
    assert demangle("_Z") == "_Z"
    demangle.cache_clear()


def test_a_short_name_has_no_arguments() -> None:
    assert short_name(OLD) == "c10::detail::torchCheckFail"
    assert short_name("_ZN1nclEv") == "n::operator()"
    assert short_name("memcpy") == "memcpy"


def test_leading_names_are_told_without_any_library() -> None:
    assert nested_names("_ZNK5torch8autograd4Node4nameEv") == "torch::autograd::Node::name"
    assert nested_names("_ZNSt6vectorIiE4sizeEv") == "std::vector"
    assert nested_names("_ZN99c10") == ""
    assert nested_names("memcpy") == ""


@pytest.mark.parametrize(
    ("symbol", "abi"),
    [
        (ERROR_OLD, "old"),
        (ERROR_NEW, "new"),
        (OLD, "old"),
        (NEW, "new"),
        ("_ZN3c1014DeviceTypeNameB5cxx11ENS_10DeviceTypeEb", "new"),
        ("_ZN3c104cuda9SetDeviceEa", None),
        ("_ZN3c1015AddressSsupportE", None),
        ("_ZN3c106ClasSsEi", None),
        ("_ZN3foo7SsSsSsSEv", None),
        ("_Z3fooILi12EEvS1_T0_Ss", "old"),
        ("memcpy", None),
    ],
)
def test_a_name_tells_the_abi_of_its_strings(symbol: str, abi: str | None) -> None:
    assert string_abi(symbol) == abi


def test_demangling_loads_nothing_heavy() -> None:
    code = "import sys, toolkit.demangle; sys.exit('elftools' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
