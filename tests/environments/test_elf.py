from __future__ import annotations

import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.environments.conftest import Compiler, real_libraries
from toolkit.environments import elf, fatbin, symbols

NO_RESET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def other_reading(path: Path) -> dict[str, Any]:
    """The same facts through pyelftools."""
    with path.open("rb") as file:
        whole = ELFFile(file)
        tags = [tag for s in whole.iter_segments() if isinstance(s, DynamicSegment) for tag in s.iter_tags()]
        return {
            "needed": tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
            "soname": next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), None),
            "rpath": next((tuple(tag.rpath.split(":")) for tag in tags if tag.entry.d_tag == "DT_RPATH"), None),
            "runpath": next((tuple(tag.runpath.split(":")) for tag in tags if tag.entry.d_tag == "DT_RUNPATH"), None),
        }


@pytest.mark.parametrize("path", real_libraries(60), ids=lambda path: path.name)
def test_real_libraries_read_as_pyelftools_reads_them(path: Path) -> None:
    file = elf.read(path)
    assert file.error is None
    assert other_reading(path) == {name: getattr(file, name) for name in other_reading(path)}


def test_a_library_says_where_its_needs_are_looked_for(compile_library: Compiler) -> None:
    one = compile_library("libone.so", flags=["-Wl,-rpath,$ORIGIN/a:/b", "-Wl,--disable-new-dtags"])
    two = compile_library("libtwo.so", needs=[one], flags=["-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags"])
    assert (elf.read(one).rpath, elf.read(one).runpath) == (("$ORIGIN/a", "/b"), None)
    assert (elf.read(two).rpath, elf.read(two).runpath) == (None, ("$ORIGIN",))
    assert elf.read(two).soname == "libtwo.so"
    assert elf.read(two).needed[0] == "libone.so"
    assert elf.read(two).default_folders
    assert elf.read(two).kind == "shared"


def test_a_library_may_shut_out_the_system_folders(compile_library: Compiler) -> None:
    assert not elf.read(compile_library("libalone.so", flags=["-Wl,-z,nodefaultlib"])).default_folders


def test_the_interpreter_itself_names_its_loader() -> None:
    file = elf.read(Path(sys.executable).resolve())
    assert file.interpreter is not None
    assert "ld-" in file.interpreter


def header(bits: int = 2, order: int = 1, kind: int = 3, machine: int = 62) -> bytes:
    start = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    return start + struct.pack("<HHI" if order == 1 else ">HHI", kind, machine, 1) + bytes(40)


@pytest.mark.parametrize(
    ("content", "machine", "error"),
    [
        (b"", None, "not an ELF file"),
        (b"not a library", None, "not an ELF file"),
        (b"\x7fELF", None, "not an ELF file"),
        (header(bits=1, machine=3), "i386", "not a 64-bit little-endian file"),
        (header(order=2, machine=22), "s390", "not a 64-bit little-endian file"),
        (header(kind=1), "x86_64", "not a program or a shared library"),
        (header(machine=12345), "machine 12345", None),
    ],
)
def test_foreign_and_damaged_files_give_what_can_be_read(
    tmp_path: Path, content: bytes, machine: str | None, error: str | None
) -> None:
    path = tmp_path / "some.so"
    path.write_bytes(content)
    file = elf.read(path)
    assert file.machine == machine
    assert (error is None and file.error is None) or (error or "") in (file.error or "")


def test_what_is_no_file_at_all_gives_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.so")
    answers: list[elf.ElfFile] = []
    reader = threading.Thread(target=lambda: answers.append(elf.read(tmp_path / "fifo.so")), daemon=True)
    reader.start()
    reader.join(10)
    assert answers, "reading a FIFO hangs"
    assert answers[0].error
    assert elf.read(tmp_path).error
    assert elf.read(tmp_path / "absent.so").error == "No such file or directory"


def read_everything(path: Path) -> None:
    """Every reader of this room, on a file that may be anything."""
    file = elf.read(path)
    table = symbols.read(file)
    names = [symbol.name for symbol in table.undefined()][:50]
    for name in (*names, "memcpy", "_ZN3c105ErrorC1Ev"):
        table.exports(name)
        table.exports(name, "GLIBC_2.2.5")
        table.value(name)
    table.starting_with("_Z")
    symbols.relocated(file)
    elf.sections(file)
    fatbin.read(path)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source = """
    #include <string>
    #include <stdexcept>
    extern "C" int outside(int);
    std::string greet(const std::string& name) { if (name.empty()) throw std::runtime_error("x"); return name; }
    int answer() { return outside(1); }
    """
    return Compiler(tmp_path_factory.mktemp("elf"))("libsample.so", source).read_bytes()


@NO_RESET
@given(data=st.data())
def test_truncated_libraries_never_crash_a_reader(sample: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "cut.so"
    path.write_bytes(sample[: data.draw(st.integers(0, len(sample)))])
    read_everything(path)


@NO_RESET
@given(data=st.data())
def test_damaged_libraries_never_crash_a_reader(sample: bytes, tmp_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(sample)
    interesting = [*range(64, 64 + 56 * 12), *range(len(sample))]
    for _ in range(data.draw(st.integers(1, 8))):
        at = interesting[data.draw(st.integers(0, len(interesting) - 1))]
        damaged[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    path = tmp_path / "damaged.so"
    path.write_bytes(bytes(damaged))
    read_everything(path)


@NO_RESET
@given(content=st.binary(max_size=2000).map(lambda tail: header() + tail))
def test_arbitrary_bytes_never_crash_a_reader(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "noise.so"
    path.write_bytes(content)
    read_everything(path)


def test_dynamic_tables_are_damaged_one_by_one_without_a_crash(sample: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tag.so"
    path.write_bytes(sample)
    whole = elf.read(path)
    at = sample.index(b"".join(struct.pack("<QQ", *entry) for entry in whole.dynamic[:2]))
    for number in range(len(whole.dynamic)):
        for value in (0, 1, 0xFFFFFFFF, 1 << 63, len(sample) - 1):
            damaged = bytearray(sample)
            struct.pack_into("<Q", damaged, at + 16 * number + 8, value)
            path.write_bytes(bytes(damaged))
            read_everything(path)
