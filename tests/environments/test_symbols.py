from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from hypothesis import given
from hypothesis import strategies as st

from tests.environments.conftest import Compiler, real_libraries
from toolkit.environments import elf, symbols
from toolkit.environments.symbols import SymbolTable


def table_of(path: Path) -> SymbolTable:
    table = symbols.read(elf.read(path))
    assert table.error is None
    return table


def other_reading(path: Path) -> tuple[set[tuple[str, str | None, bool]], set[str]]:
    """Undefined symbols (name, version, weak) and exported names, through pyelftools."""
    undefined: set[tuple[str, str | None, bool]] = set()
    exported: set[str] = set()
    with path.open("rb") as file:
        whole = ELFFile(file)
        table = whole.get_section_by_name(".dynsym")
        versym = next((s for s in whole.iter_sections() if isinstance(s, GNUVerSymSection)), None)
        verneed = next((s for s in whole.iter_sections() if isinstance(s, GNUVerNeedSection)), None)
        for number, symbol in enumerate(table.iter_symbols()):
            binding = symbol.entry.st_info.bind
            if not symbol.name or binding == "STB_LOCAL":
                continue
            if symbol.entry.st_shndx != "SHN_UNDEF":
                exported.add(symbol.name)
                continue
            index = versym.get_symbol(number).entry.ndx if versym else None
            version = verneed.get_version(index)[1].name if verneed and isinstance(index, int) else None
            undefined.add((symbol.name, version, binding == "STB_WEAK"))
    return undefined, exported


@pytest.mark.parametrize("path", real_libraries(24), ids=lambda path: path.name)
def test_real_symbols_read_as_pyelftools_reads_them(path: Path) -> None:
    table = table_of(path)
    undefined, exported = other_reading(path)
    assert {(s.name, s.version, s.weak) for s in table.undefined()} == undefined
    assert all(table.exports(name) for name in list(exported)[:500])
    assert not any(
        table.exports(name) for name, _, _ in undefined - {(n, v, w) for n, v, w in undefined if n in exported}
    )


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_every_kind_of_hash_table_is_searched(compile_library: Compiler, style: str) -> None:
    names = [f"function_{number}" for number in range(200)]
    source = "".join(f'extern "C" int {name}() {{ return 1; }}\n' for name in names)
    table = table_of(compile_library("libhash.so", source, flags=[f"-Wl,--hash-style={style}"]))
    assert all(map(table.exports, names))
    assert not table.exports("function_200")
    assert not table.exports("function_")


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_a_library_that_exports_nothing_still_says_what_it_asks_for(compile_library: Compiler, style: str) -> None:
    source = 'extern "C" int outside(); static int run() { return outside(); } static int kept = run();'
    library = compile_library("libquiet.so", source, flags=[f"-Wl,--hash-style={style}"])
    assert "outside" in {symbol.name for symbol in table_of(library).undefined()}


def test_a_weak_need_is_told_from_a_strong_one(compile_library: Compiler) -> None:
    source = """
    extern "C" { int strong(); int weak() __attribute__((weak)); }
    int use() { return strong() + (weak ? weak() : 0); }
    """
    needs = {symbol.name: symbol for symbol in table_of(compile_library("libweak.so", source)).undefined()}
    assert needs["weak"].weak
    assert not needs["strong"].weak


@pytest.fixture
def versioned(compile_library: Compiler) -> Path:
    script = compile_library.folder / "versions.map"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text("V1 { global: old_one; both; }; V2 { global: new_one; } V1; V3 { local: hidden_*; } V2;")
    source = """
    extern "C" { int old_one() { return 1; } int new_one() { return 2; } int both() { return 3; }
    int plain() { return 4; } }
    """
    return compile_library("libversions.so", source, flags=[f"-Wl,--version-script={script}"])


def test_a_symbol_is_bound_in_its_own_version_only(versioned: Path) -> None:
    table = table_of(versioned)
    assert set(table.defined.values()) == {"V1", "V2", "V3"}
    assert table.exports("old_one", "V1")
    assert not table.exports("old_one", "V2")
    assert table.exports("old_one"), "a file that asks for no version takes any"
    assert table.exports("plain", "V9"), "a symbol without a version serves every version, as in glibc"


def test_a_versioned_need_names_the_library_it_was_linked_against(compile_library: Compiler, versioned: Path) -> None:
    source = 'extern "C" int new_one(); int use() { return new_one(); }'
    table = table_of(compile_library("libuser.so", source, needs=[versioned]))
    need = next(symbol for symbol in table.undefined() if symbol.name == "new_one")
    assert (need.version, need.library) == ("V2", "libversions.so")
    assert ("libversions.so", "V2", False) in table.needed.values()


def test_exports_are_found_by_the_beginning_of_their_names(compile_library: Compiler) -> None:
    source = "namespace n { int f(int) { return 1; } int f(char) { return 2; } int g() { return 3; } }"
    table = table_of(compile_library("libprefix.so", source))
    assert table.starting_with("_ZN1n1f") == ("_ZN1n1fEc", "_ZN1n1fEi")
    assert table.starting_with("_ZN1n", limit=1) != ()
    assert table.starting_with("_ZN1q") == ()


def test_only_symbols_that_a_relocation_binds_are_looked_up(compile_library: Compiler) -> None:
    source = """
    extern "C" int used();
    __asm__(".globl unused\\n");
    int use() { return used(); }
    """
    file = elf.read(compile_library("librelocated.so", source))
    numbers = {symbol.name: symbol.number for symbol in symbols.read(file).undefined()}
    assert numbers["used"] in symbols.relocated(file)
    assert numbers.get("unused", -1) not in symbols.relocated(file)


def test_the_value_of_a_symbol_is_its_address(compile_library: Compiler) -> None:
    table = table_of(compile_library("libvalue.so", 'extern "C" { unsigned long number = 7; }'))
    address, size = table.value("number") or (0, 0)
    assert table.file.offset(address) > 0
    assert size == 8
    assert table.value("nothing") is None


@given(st.binary(max_size=80))
def test_hashes_are_those_of_the_specifications(name: bytes) -> None:
    value = 5381
    for byte in name:
        value = value * 33 + byte
    assert symbols.gnu_hash(name) == value % 2**32
    assert 0 <= symbols.sysv_hash(name) < 2**28


def test_known_hashes() -> None:
    assert symbols.gnu_hash(b"printf") == 0x156B2BB8
    assert symbols.sysv_hash(b"printf") == 0x077905A6
