"""Blocks of the KV cache that outlive their request: who has which, and which prefix each one holds. Pure.

A prefix is named by a chain of hashes, one for every whole block of tokens; each hash covers all the tokens before it.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import OrderedDict
from collections.abc import Sequence

# A key of this process: nobody can make up a prompt whose hash is another's.
_KEY = os.urandom(16)


class BlockAllocator:
    """Blocks 0 to ``count`` - 1, each free or taken; taking and giving back takes constant time."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._taken = bytearray(count)

    @property
    def taken(self) -> int:
        """How many blocks are taken."""
        return self.count - len(self._free)

    def take(self) -> int | None:
        """A block that was free; None when none is."""
        if not self._free:
            return None
        block = self._free.pop()
        self._taken[block] = 1
        return block

    def give_back(self, block: int) -> None:
        """The block is free afterwards. Raises: ValueError when it is not taken."""
        if not 0 <= block < self.count or not self._taken[block]:
            raise ValueError(f"block {block} is not taken")
        self._taken[block] = 0
        self._free.append(block)


def chain(token_ids: Sequence[int], block_tokens: int) -> list[bytes]:
    """The hash of every whole block of these tokens, each covering all tokens up to its end."""
    links: list[bytes] = []
    link = b""
    for end in range(block_tokens, len(token_ids) + 1, block_tokens):
        tokens = array("q", token_ids[end - block_tokens : end]).tobytes()
        link = hashlib.blake2b(link + tokens, digest_size=16, key=_KEY).digest()
        links.append(link)
    return links


class PrefixBlocks:
    """Which block holds which link of a chain; the least recently used one gives way, the end of a chain first."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        self._blocks: OrderedDict[bytes, int] = OrderedDict()

    def match(self, links: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known beginning of a chain, in order; they count as used now."""
        known: list[int] = []
        for link in links:
            block = self._blocks.get(link)
            if block is None:
                break
            known.append(block)
        self._touch(links[: len(known)])
        return known

    def store(self, links: Sequence[bytes]) -> list[tuple[int, int]]:
        """Where to put what is not known yet: index in the chain, and the block that holds it from now on.

        Short of blocks, the end of the chain is left out.
        """
        known = len(self.match(links))
        wanted = set(links)
        placed: list[tuple[int, int]] = []
        for index in range(known, len(links)):
            block = self._block(wanted)
            if block is None:
                break
            self._blocks[links[index]] = block
            placed.append((index, block))
        self._touch(links[: known + len(placed)])
        return placed

    def _block(self, wanted: set[bytes]) -> int | None:
        block = self._allocator.take()
        if block is not None or not self._blocks:
            return block
        oldest = next(iter(self._blocks))
        if oldest in wanted:
            return None
        self._allocator.give_back(self._blocks.pop(oldest))
        return self._allocator.take()

    def _touch(self, links: Sequence[bytes]) -> None:
        # The beginning last, so that the end of a chain goes first: without its beginning nobody finds it.
        for link in reversed(links):
            self._blocks.move_to_end(link)
