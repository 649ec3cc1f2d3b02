"""C++ names as people write them, through the C++ run-time library of this machine."""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from functools import lru_cache

_LENGTH = re.compile(r"\d+")
MAX_CHARS = 4096


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The C++ run-time library; None: this machine has none."""
    for name in ("libstdc++.so.6", ctypes.util.find_library("stdc++"), ctypes.util.find_library("c++abi")):
        try:
            library = ctypes.CDLL(name) if name else None
            function = library.__cxa_demangle if library else None
        except (OSError, AttributeError):
            continue
        if library and function:
            function.restype = ctypes.c_void_p
            function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
            return library
    return None


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    return libc


def demangle(symbol: str) -> str:
    """The C++ name of a mangled symbol; where it cannot be told, its nested names, or the symbol as it is."""
    if not symbol.startswith("_Z") or len(symbol) > MAX_CHARS:
        return symbol
    return _by_library(symbol) or nested_names(symbol) or symbol


def _by_library(symbol: str) -> str | None:
    library = _library()
    if library is None:
        return None
    status = ctypes.c_int(0)
    address = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not address or status.value:
        return None
    try:
        return ctypes.string_at(address).decode(errors="replace")
    finally:
        _libc().free(address)


def nested_names(symbol: str) -> str:
    """``a::b::c`` of the leading names of a mangled symbol; empty when there is none."""
    start = re.match(r"_Z(?:T[VISTHv]|GV)?N?[KVr]*", symbol)
    names, at = [], start.end() if start else 0
    while found := _LENGTH.match(symbol, at):
        end = found.end() + int(found[0])
        if end > len(symbol):
            break
        names.append(symbol[found.end() : end])
        at = end
    return "::".join(names)


def short_name(symbol: str) -> str:
    """The demangled name without its arguments, for a sentence."""
    name = demangle(symbol)
    depth = 0
    for at, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0 and at:
            return name[:at]
    return name


def string_abi(symbol: str) -> str | None:
    """``old`` or ``new``: the C++ ABI that the symbol's ``std::string`` shows; None when there is none in it."""
    if "__cxx11" in symbol or "B5cxx11" in symbol:
        return "new"
    return "old" if re.search(r"(?:Ss|RKSs|PKSs|OSs)(?:$|[a-zA-Z_\d])", symbol) else None
