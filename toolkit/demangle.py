"""C++ names as people read them, through the C++ runtime's own demangler."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

Demangler = Callable[[str], "str | None"]


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


MAX_NAME_CHARS = 16 * 1024  # the longest exported name of torch 2.13 has under 2,000


@functools.lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """The readable form of a mangled C++ name; any other name, or where no demangler is installed, the name itself."""
    demangler = system_demangler()
    if demangler is None or not name.startswith(("_Z", "__Z")) or len(name) > MAX_NAME_CHARS or "\0" in name:
        return name
    return demangler(name) or name


STRING_SPELLINGS = (
    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >",
    "std::basic_string<char, std::char_traits<char>, std::allocator<char> >",
)


def readable(name: str) -> str:
    """The demangled name with ``std::string`` spelled short; both C++11 ABIs then read the same."""
    text = demangle(name)
    for spelling in STRING_SPELLINGS:
        text = text.replace(spelling, "std::string")
    return text.replace("std::__cxx11::", "std::").replace("[abi:cxx11]", "")
