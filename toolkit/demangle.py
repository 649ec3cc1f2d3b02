"""C++ names as people read them, through the C++ runtime's own demangler, and what they tell of an ABI."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from typing import Literal

Abi = Literal["old", "new"]
Demangler = Callable[[str], "str | None"]

MAX_NAME_CHARS = 16 * 1024  # the longest exported name of torch 2.13 has under 2,000
STRING_SPELLINGS = (
    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >",
    "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
)
_SPECIAL = re.compile(r"_Z(?:T[VTISW]|GV|GR|Th\w*?_|Tv\w*?_\w*?_|TC)?Z*")
_NESTED = re.compile(r"N[rVK]*[RO]?")
_LENGTH = re.compile(r"([1-9][0-9]{0,4})")
# Literals, back references, template parameters, array sizes; else an identifier with its length before it.
_NO_TYPE = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|T\d*_|A\d+_|(\d{1,5})")


@functools.lru_cache(maxsize=1)
def system_demangler() -> Demangler | None:
    """The ``__cxa_demangle`` of this machine's libstdc++ (or libc++abi); None where neither is installed."""
    return _demangler_of("libstdc++.so.6") or _demangler_of("libc++abi.so.1")


def _demangler_of(library: str) -> Demangler | None:
    try:
        function = ctypes.CDLL(library)["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    free = ctypes.CDLL(None)["free"]
    free.restype = None
    free.argtypes = [ctypes.c_void_p]

    def demangle_one(name: str) -> str | None:
        status = ctypes.c_int(0)
        address = function(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
        if not address:
            return None
        try:
            return ctypes.string_at(address).decode("utf-8", "replace")
        finally:
            free(address)

    return demangle_one


@functools.lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """The readable form of a mangled C++ name; its qualified name where only that can be told, else the name itself."""
    if not name.startswith(("_Z", "__Z")) or len(name) > MAX_NAME_CHARS or "\0" in name:
        return name
    demangler = system_demangler()
    return (demangler and demangler(name)) or nested_names(name) or name


def readable(name: str) -> str:
    """The demangled name with ``std::string`` spelled short; both C++11 ABIs then read the same."""
    text = demangle(name)
    for spelling in STRING_SPELLINGS:
        text = text.replace(spelling, "std::string")
    return text.replace("std::__cxx11::", "std::").replace("[abi:cxx11]", "")


def short_name(name: str) -> str:
    """The demangled name without its arguments, for a sentence."""
    text = demangle(name)
    depth = 0
    for at, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0 and at and not text[:at].endswith("operator"):
            return text[:at]
    return text


def nested_names(name: str) -> str:
    """``a::b::c`` of the leading identifiers of a mangled name; empty when there is none."""
    return "::".join("std" if part == "St" else part for part, _ in identifiers(name))


def identifiers(name: str) -> Iterator[tuple[str, int]]:
    """Each leading identifier of a mangled name and where it ends; ``St`` stands for std."""
    start = _SPECIAL.match(name)
    at = start.end() if start else 0
    nested = _NESTED.match(name, at)
    at = nested.end() if nested else at
    if name[at : at + 2] in {"St", "Ss", "Sa"}:
        yield "St", at + 2
        at += 2
    while (length := _LENGTH.match(name, at)) is not None:
        at = length.end() + int(length[1])
        if at > len(name):
            return
        yield name[length.end() : at], at


def string_abi(name: str) -> Abi | None:
    """The ABI of ``std::string`` that a mangled name was made with; None when it has no string or list in it."""
    if "__cxx11" in name or "B5cxx11" in name:
        return "new"
    return "old" if "Ss" in _without_identifiers(name) else None


def _without_identifiers(name: str) -> str:
    """A mangled name less its identifiers, whose letters mean nothing to the grammar."""
    kept, at = [], 0
    while at < len(name):
        token = _NO_TYPE.match(name, at)
        if token is None:
            kept.append(name[at])
            at += 1
        else:
            kept.append("|")
            at = token.end() + int(token[1] or 0)
    return "".join(kept)
