from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.environments import ld_cache

X86_64, I386 = ld_cache.FLAGS["x86_64"], ld_cache.FLAGS["i386"]
Row = tuple[str, str, int, "str | None"]


def new_format(*rows: Row) -> bytes:
    """A cache as ldconfig of glibc 2.33 and later writes it."""
    levels = sorted({row[3] for row in rows if row[3]})
    extension_size = 8 + 16 + 4 * len(levels)
    strings_at = 48 + 24 * len(rows)
    strings, places = b"", {}
    for text in [t for row in rows for t in row[:2]] + levels:
        places[text] = strings_at + len(strings)
        strings += text.encode() + b"\0"
    extension_at = (strings_at + len(strings) + 3) // 4 * 4
    entries = b"".join(
        struct.pack("<iIIIQ", flags, places[name], places[path], 0, (1 << 62) | levels.index(level) if level else 0)
        for name, path, flags, level in rows
    )
    head = ld_cache.NEW_MAGIC + struct.pack("<IIB3xI12x", len(rows), len(strings), 2, extension_at)
    table = struct.pack("<II", ld_cache.EXTENSION_MAGIC, 1) + struct.pack(
        "<IIII", 1, 0, extension_at + 24, 4 * len(levels)
    )
    body = (head + entries + strings).ljust(extension_at, b"\0") + table
    assert len(table) + 4 * len(levels) == extension_size
    return body + b"".join(struct.pack("<I", places[level]) for level in levels)


def old_format(*rows: tuple[str, str, int], then: bytes = b"") -> bytes:
    strings, entries = b"", b""
    for name, path, flags in rows:
        entries += struct.pack("<iII", flags, len(strings), len(strings) + len(name) + 1)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    head = (ld_cache.OLD_MAGIC.ljust(12, b"\0") + struct.pack("<I", len(rows))) + entries
    return head.ljust((len(head) + 7) // 8 * 8, b"\0") + then if then else head + strings


def test_the_machines_own_cache_is_what_ldconfig_prints() -> None:
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    if not Path(ldconfig).exists() or not Path("/etc/ld.so.cache").exists():
        pytest.skip("there is no ldconfig here")
    lines = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout.splitlines()
    printed = {(line.split()[0], Path(line.split(" => ")[1])) for line in lines if " => " in line}
    assert {(entry.soname, entry.path) for entry in ld_cache.read(Path("/etc/ld.so.cache")).entries} == printed


def test_the_best_level_that_the_cpu_has_wins() -> None:
    cache = ld_cache.parse(
        new_format(
            ("libm.so.6", "/usr/lib/glibc-hwcaps/x86-64-v4/libm.so.6", X86_64, "x86-64-v4"),
            ("libm.so.6", "/usr/lib/glibc-hwcaps/x86-64-v3/libm.so.6", X86_64, "x86-64-v3"),
            ("libm.so.6", "/usr/lib/libm.so.6", X86_64, None),
        )
    )
    assert cache.error is None
    assert cache.find("libm.so.6", "x86_64") == Path("/usr/lib/libm.so.6")
    assert cache.find("libm.so.6", "x86_64", ("x86-64-v3", "x86-64-v2")) == Path(
        "/usr/lib/glibc-hwcaps/x86-64-v3/libm.so.6"
    )


def test_the_first_of_equal_entries_wins_and_other_machines_are_passed_over() -> None:
    rows = [("libz.so.1", "/lib32/libz.so.1", I386, None), ("libz.so.1", "/a/libz.so.1", X86_64, None)]
    cache = ld_cache.parse(new_format(*rows, ("libz.so.1", "/b/libz.so.1", X86_64, None)))
    assert cache.find("libz.so.1", "x86_64") == Path("/a/libz.so.1")
    assert cache.find("libz.so.1", "i386") == Path("/lib32/libz.so.1")
    assert cache.find("libz.so.1", "aarch64") is None
    assert cache.find("liby.so.1", "x86_64") is None


def test_the_old_format_is_read_alone_and_in_front_of_the_new_one() -> None:
    old = ("libc.so.6", "/old/libc.so.6", X86_64)
    assert ld_cache.parse(old_format(old)).find("libc.so.6", "x86_64") == Path("/old/libc.so.6")
    both = old_format(old, then=new_format(("libc.so.6", "/new/libc.so.6", X86_64, None)))
    assert ld_cache.parse(both).find("libc.so.6", "x86_64") == Path("/new/libc.so.6")


def test_a_missing_or_foreign_cache_is_empty_and_says_why(tmp_path: Path) -> None:
    assert ld_cache.read(tmp_path / "ld.so.cache").error == "No such file or directory"
    assert "damaged" in (ld_cache.parse(b"not a cache").error or "")
    assert "damaged" in (ld_cache.parse(new_format(("a", "b", 3, None))[:60]).error or "")


@given(st.binary(max_size=200), st.sampled_from([b"", ld_cache.OLD_MAGIC, ld_cache.NEW_MAGIC]))
def test_arbitrary_bytes_never_crash_the_parser(content: bytes, start: bytes) -> None:
    cache = ld_cache.parse(start + content)
    assert cache.error is not None or isinstance(cache.entries, tuple)
