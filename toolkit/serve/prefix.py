"""Prefix reuse over a compiled engine: a prompt starts behind the blocks that an earlier request left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from toolkit.serve.blocks import BlockAllocator, PrefixBlocks, chain

if TYPE_CHECKING:
    from torch import Tensor


class BlockEngine(Protocol):
    """The engine, as far as reuse needs it."""

    block_tokens: int
    stored_blocks: int
    cache_blocks: int

    @property
    def piece_tokens(self) -> int:
        """The most tokens that one run of ``prefill`` takes."""

    def length(self, slot: int) -> int:
        """Tokens that the slot holds."""

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> Tensor:
        """Logits after these tokens, which stand behind the first ``start`` of the slot."""

    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Logits after one more token in each slot."""

    def release(self, slot: int) -> None:
        """The slot is free afterwards."""

    def wipe(self, slot: int) -> None:
        """Nothing of what the slot held can be met again."""

    def load_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        """The slot holds these blocks."""

    def save_blocks(self, slot: int, placed: Sequence[tuple[int, int]]) -> None:
        """The store holds these blocks of the slot."""


class PrefixCache:
    """Puts requests into an engine's slots, and keeps whole blocks of their tokens when they leave.

    Without stored blocks it passes everything through. Blocks are saved at the end of a request, off the way to
    anybody's first token.
    """

    def __init__(self, engine: BlockEngine) -> None:
        self._engine = engine
        self._blocks = BlockAllocator(engine.stored_blocks)
        self._prefixes = PrefixBlocks(self._blocks)
        self._tokens: dict[int, list[int]] = {}
        self.hit_tokens = 0

    @property
    def blocks(self) -> int:
        """Blocks of the whole KV cache: of the slots, and of the store."""
        return self._engine.cache_blocks + self._engine.stored_blocks

    @property
    def blocks_in_use(self) -> int:
        """Blocks that hold tokens of a request under way, or a prefix."""
        size = self._engine.block_tokens
        return self._blocks.taken + sum(-(-len(tokens) // size) for tokens in list(self._tokens.values()))

    @property
    def stored(self) -> int:
        """Blocks that hold a prefix."""
        return self._blocks.taken

    @property
    def piece_tokens(self) -> int:
        """The most tokens that one call of ``prefill`` should be given."""
        return self._engine.piece_tokens

    def place(self, slot: int, token_ids: Sequence[int]) -> int:
        """How many of the prompt's tokens the slot holds now; not its last one, because a cache holds no logits."""
        self._tokens[slot] = list(token_ids)
        start = self._load(slot, token_ids[:-1])
        self.hit_tokens += start
        return start

    def prefill(self, slot: int, token_ids: Sequence[int], start: int) -> Tensor:
        """Logits after these tokens of the prompt, which stand behind its first ``start``."""
        return self._engine.prefill(slot, token_ids, start)

    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Logits after one more token in each slot."""
        logits = self._engine.decode(slots, token_ids)
        for slot, token in zip(slots, token_ids, strict=True):
            self._tokens[slot].append(token)
        return logits

    def release(self, slot: int, *, keep: bool = True) -> None:
        """The slot is free afterwards; with ``keep`` its whole blocks are kept, else nothing is."""
        tokens = self._tokens.pop(slot, [])
        try:
            if keep:
                self._save(slot, tokens[: self._engine.length(slot)])
            else:
                self._engine.wipe(slot)
        finally:
            self._engine.release(slot)

    def _load(self, slot: int, token_ids: Sequence[int]) -> int:
        if not self._blocks.count:
            return 0
        blocks = self._prefixes.match(chain(token_ids, self._engine.block_tokens))
        if blocks:
            self._engine.load_blocks(slot, blocks)
        return len(blocks) * self._engine.block_tokens

    def _save(self, slot: int, token_ids: Sequence[int]) -> None:
        if not self._blocks.count:
            return
        placed = self._prefixes.store(chain(token_ids, self._engine.block_tokens))
        if placed:
            self._engine.save_blocks(slot, placed)
