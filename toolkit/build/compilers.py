"""Which C++ compiler makes packages that load: found, and tried on a small library, before anything slow begins."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.build.full_disk import full_disk_error, is_full_disk
from toolkit.errors import ToolkitError

FALLBACKS = ("g++", "clang++")
_TIMEOUT_S = 60.0
# A static C++ library inside the package crashes beside torch's own, and std::regex is where it was seen to.
_PROBE_SOURCE = """
#include <regex>
#include <string>
extern "C" int coexist_probe() {
  try {
    std::regex pattern("([a-z]+)([0-9]+)");
    std::smatch match;
    std::string text = "probe42";
    return std::regex_match(text, match, pattern) && match[2] == "42" ? 42 : 1;
  } catch (...) { return 2; }
}
"""
_LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).coexist_probe())"


@dataclass(frozen=True)
class Compiler:
    """A compiler that works: its command, what it says of itself, and notes on those that did not."""

    command: str
    version: str
    notes: tuple[str, ...] = ()


def find_compiler(environ: Mapping[str, str], python: Path) -> Compiler:
    """The first of ``CXX``, g++ and clang++ whose library a fresh process of ``python`` loads and runs.

    Raises: ToolkitError when there is none, or none that works.
    """
    candidates = list(dict.fromkeys(filter(None, (environ.get("CXX"), *FALLBACKS))))
    failures: list[str] = []
    for candidate in candidates:
        command = shlex.split(candidate)
        program = shutil.which(command[0], path=environ.get("PATH"))
        if program is None:
            if candidate == environ.get("CXX"):
                failures.append(f"CXX names {candidate}, which is not there")
            continue
        fault = _probe([program, *command[1:]], environ, python)
        if fault is None:
            return Compiler(shlex.join([program, *command[1:]]), _version(program, environ), tuple(failures))
        failures.append(f"{candidate} is not used: {fault}")
    if failures:
        what, hint = f"no C++ compiler works: {'; '.join(failures)}", "Install g++, or set CXX to one that works."
    else:
        what, hint = "no C++ compiler", "Install g++ (Debian: apt-get install g++), or set CXX."
    raise ToolkitError(what, f"PATH={environ.get('PATH', '')}", hint, code="no_compiler")


def _version(program: str, environ: Mapping[str, str]) -> str:
    done = _run([program, "--version"], environ)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else "unknown"


def _probe(compiler: Sequence[str], environ: Mapping[str, str], python: Path) -> str | None:
    """What is wrong with a compiler; None when its library links the shared C++ library, loads, and runs.

    Raises: ToolkitError when the disk is full.
    """
    with tempfile.TemporaryDirectory(prefix="coexist-probe-") as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_PROBE_SOURCE, encoding="utf-8")
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared"]
        built = _run([*compiler, *flags, str(source), "-o", str(library)], environ)
        if is_full_disk(built.returncode, built.stderr):
            raise full_disk_error(Path(folder).parent)
        if built.returncode != 0 or not library.is_file():
            return f"it cannot compile a small program ({_last_line(built.stderr)})"
        if not links_shared_cxx(library.read_bytes()):
            return "it links its own static C++ library, and such packages crash when they are loaded"
        status = _run([str(python), "-c", _LOAD, str(library)], environ).returncode
        return None if status == 42 else f"what it compiles does not run (exit status {status})"


def links_shared_cxx(library: bytes) -> bool:
    """Whether a shared library takes the C++ library from a shared one, as torch does."""
    from elftools.elf.dynamic import DynamicSection  # noqa: PLC0415 - as in fused_attention
    from elftools.elf.elffile import ELFFile  # noqa: PLC0415

    sections = ELFFile(io.BytesIO(library)).iter_sections()
    tags = [
        tag for section in sections if isinstance(section, DynamicSection) for tag in section.iter_tags("DT_NEEDED")
    ]
    return any(tag.needed.startswith(("libstdc++", "libc++")) for tag in tags)


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    env = {name: environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in environ}
    try:
        return subprocess.run(
            argv, env={**env, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, os.EX_UNAVAILABLE, "", str(error))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
