from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit import demangle as module
from toolkit.demangle import demangle, readable

NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"
SHORT = "c10::detail::torchCheckFail(char const*, char const*, unsigned int, std::string const&)"


def test_a_mangled_name_is_read_as_a_person_would_write_it() -> None:
    assert demangle(OLD) == SHORT
    assert "std::__cxx11::basic_string" in demangle(NEW)


def test_both_abis_of_a_function_read_the_same() -> None:
    assert readable(OLD) == readable(NEW) == SHORT
    tagged, plain = "_ZN3c1014DeviceTypeNameB5cxx11ENS_10DeviceTypeEb", "_ZN3c1014DeviceTypeNameENS_10DeviceTypeEb"
    assert readable(tagged) == readable(plain) == "c10::DeviceTypeName(c10::DeviceType, bool)"


@pytest.mark.parametrize("name", ["", "memcpy", "_Z", "_ZN3c10", "_Z\0", "_Z" + "N" * 100_000, "naïve"])
def test_what_is_no_mangled_name_stays_as_it_is(name: str) -> None:
    assert demangle(name) == name


@given(st.text(max_size=60))
def test_any_text_gives_some_name(tail: str) -> None:
    assert isinstance(readable("_Z" + tail), str)


def test_without_a_demangler_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    demangle.cache_clear()
    monkeypatch.setattr(module, "system_demangler", lambda: None)
    assert demangle(OLD) == OLD
    demangle.cache_clear()


def test_demangling_loads_nothing_heavy() -> None:
    code = "import sys, toolkit.demangle; sys.exit('elftools' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
