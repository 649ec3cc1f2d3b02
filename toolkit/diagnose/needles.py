"""Many short strings searched for at once: a trie as one expression skips a line much faster than a loop does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any


class Needles:
    """Which rules (numbers) a line concerns, by the strings that must be in it (lower case)."""

    def __init__(self, rules: Mapping[int, Iterable[str]]) -> None:
        users: dict[bytes, set[int]] = {}
        for order, needles in rules.items():
            for text in needles:
                users.setdefault(text.encode(), set()).add(order)
        shortest: list[bytes] = []
        for needle in sorted(users, key=len):
            if not any(one in needle for one in shortest):
                shortest.append(needle)
        trie = _expression(_trie(shortest))
        self._any = re.compile(trie)
        self._each = re.compile(b"(?=(" + trie + b"))")
        self._index: dict[bytes, list[tuple[bytes, frozenset[int]]]] = {one: [] for one in shortest}
        for needle, orders in users.items():
            within = next(one for one in shortest if one in needle)
            self._index[within].append((needle, frozenset(orders)))

    def is_in(self, low: bytes) -> bool:
        """True when the line (lower case) holds one of the strings."""
        return self._any.search(low) is not None

    def concerned(self, low: bytes) -> list[int]:
        """The rules with a string in the line (lower case), in their order."""
        found: set[int] = set()
        for one in set(self._each.findall(low)):
            for needle, orders in self._index[one]:
                if needle in low:
                    found |= orders
        return sorted(found)


def _trie(words: Iterable[bytes]) -> dict[int, Any]:
    root: dict[int, Any] = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
    return root


def _expression(node: dict[int, Any]) -> bytes:
    branches = [re.escape(bytes([letter])) + _expression(below) for letter, below in sorted(node.items())]
    return branches[0] if len(branches) == 1 else b"(?:" + b"|".join(branches) + b")" if branches else b""
