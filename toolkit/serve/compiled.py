"""A compiled engine at run time: packages, weights and KV caches in memory, ready for prefill and decode.

Nothing here compiles or traces, and nothing heavy is imported: only torch's core and its package loader.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from toolkit.errors import ToolkitError
from toolkit.serve import native, packing
from toolkit.serve.isa import missing_features
from toolkit.serve.kv_cache import divide, workspace_bytes
from toolkit.serve.model_files import ENGINE_FORMAT, read_json
from toolkit.serve.replay import GraphPool, Pool, Replays
from toolkit.serve.sampling import Sampler, Sampling, choose
from toolkit.serve.sizes import padded, padded_sizes
from toolkit.serve.weights import load_tensors

PHASES = ("prefill", "decode")
# Keys that a decode step looks at are padded to a multiple; the mask hides those that are too many.
KEYS_STEP = 32
# On the CPU longer prompts run in pieces: as fast, and with fewer sizes to warm.
CPU_PIECE = 128
OnPart = Callable[[str, float], None]
_Result = TypeVar("_Result")


def cache_length(max_seq_len: int) -> int:
    """Positions that one slot's KV cache holds: a few more than ``max_seq_len``.

    The spare ones take the writes of idle rows, and keep a full slot apart from a whole cache in the traced graph.
    """
    return (max_seq_len // 16 + 1) * 16


class CompiledEngine:
    """Slots 0..max_batch_size-1, each with its own position and KV cache; not thread-safe.

    A slot lives from ``prefill`` to ``release``. Low slot numbers first: a decode step costs as much as the
    range from the lowest to the highest slot it names. ``cache`` holds key and value by layer, [2 L, slots, K, S, D];
    ``store`` the blocks that outlive a slot, [2 L, K, blocks, tokens, D].
    """

    def __init__(
        self, info: Mapping[str, Any], packages: Mapping[str, Any], cache: Tensor, store: Tensor, bytes_read: int = 0
    ) -> None:
        self.info = info
        limits = info["limits"]
        self.max_batch_size = cache.shape[1]
        self.max_input_len: int = limits["max_input_len"]
        self.max_seq_len: int = limits["max_seq_len"]
        self.block_tokens = store.shape[3]
        self.stored_blocks = store.shape[2]
        self.cache_blocks = self.max_batch_size * (cache.shape[3] // self.block_tokens)
        self.vocab_size: int = info["vocab_size"]
        self.eos_token_ids: Sequence[int] = tuple(info["eos_token_ids"])
        self.bytes_read = bytes_read
        self.kv_cache_bytes = cache.nbytes + store.nbytes
        self._packages = packages
        self._cache, self._store = cache, store
        self._layers = list(cache.unbind(0))
        self._device = cache.device
        self._counting = torch.arange(self.max_seq_len, device=self._device)
        self._lengths = [0] * self.max_batch_size
        self._views: dict[tuple[int, int], list[Tensor]] = {}
        self._replays: Replays | None = None
        if self._device.type == "cuda":
            self.replay_with(GraphPool(self._device))

    def replay_with(self, pool: Pool) -> None:
        """From now on decode steps are captured and replayed."""
        self._replays = Replays(self._run_decode, pool, self._cache, self.max_batch_size, self.max_seq_len)

    @classmethod
    def load(cls, engine_dir: Path, device: str, on_part: OnPart = lambda name, seconds: None) -> CompiledEngine:
        """The engine of a folder, in memory; ``on_part`` hears how long context, weights, kv_cache and kernels took.

        Raises: ToolkitError when the folder is no engine, was compiled for another device or processor, or its KV
        cache does not fit.
        """
        info = read_engine_info(engine_dir)
        check_fits(info, engine_dir, device)
        packages = _timed("context", on_part, lambda: _open_packages(engine_dir, device))
        bytes_read = _timed("weights", on_part, lambda: _give_weights(engine_dir, info, device, packages))
        cache, store = _timed("kv_cache", on_part, lambda: _new_cache(info, device))
        engine = cls(info, packages, cache, store, bytes_read)
        _timed("kernels", on_part, engine.first_step)
        return engine

    def first_step(self) -> None:
        """A prompt of one token and the choice of the next: libraries load what every request needs."""
        choose(self.prefill(0, [0])[None], [Sampler(Sampling())])
        self.release(0)

    @property
    def chunks(self) -> bool:
        """Whether a prompt may start behind tokens that the slot already holds."""
        return bool(self.info["fmha"] == "enable")

    def length(self, slot: int) -> int:
        """Tokens whose keys and values the slot holds; 0 when it is free."""
        return self._lengths[slot]

    def prefill(self, slot: int, token_ids: Sequence[int], start: int = 0) -> Tensor:
        """Logits [vocab] float32 after the last token; the slot then holds start + len(token_ids) tokens.

        ``start`` > 0 continues behind tokens the slot already holds (a chunk, or stored blocks).
        Raises: ValueError when there is no token, the slot holds fewer than ``start``, or a limit is passed.
        """
        end = start + len(token_ids)
        if start and not self.chunks:
            raise ValueError("this engine was built without fused attention: a prompt starts at position 0")
        if not token_ids or len(token_ids) > self.max_input_len or end > self.max_seq_len:
            raise ValueError(f"{len(token_ids)} tokens from position {start} do not fit this engine's limits")
        if start and not 0 < start <= self._lengths[slot]:
            raise ValueError(f"slot {slot} holds {self._lengths[slot]} tokens, so nothing can start at {start}")
        piece = self.piece_tokens
        for begin in range(0, len(token_ids), piece):
            logits = self._prefill_piece(slot, token_ids[begin : begin + piece], start + begin)
        return logits

    def _prefill_piece(self, slot: int, token_ids: Sequence[int], start: int) -> Tensor:
        count = len(token_ids)
        size = padded(count, min(self.piece_tokens, self.max_seq_len - start))
        tokens = torch.tensor([*token_ids, *[0] * (size - count)], device=self._device)
        first, last = (torch.tensor([place], device=self._device) for place in (start, count - 1))
        inputs = [tokens, first, last, self._counting[: start + size]]
        logits: Tensor = self._packages["prefill"].run(inputs + self._rows(slot, slot + 1))
        self._lengths[slot] = start + count
        return logits

    @property
    def piece_tokens(self) -> int:
        """The most tokens of a prompt that run at once."""
        pieces = self._device.type == "cpu" and self.chunks
        return min(CPU_PIECE, self.max_input_len) if pieces else self.max_input_len

    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> Tensor:
        """Logits [n, vocab] float32 after one more token in each of n different slots, in the order given.

        Raises: ValueError when a slot is named twice, holds nothing or is full.
        """
        self._check_decode(slots, token_ids)
        first, last = min(slots), max(slots) + 1
        if self._replays is not None:
            first = 0  # graphs are of the first rows
        tokens = [0] * (last - first)
        for slot, token in zip(slots, token_ids, strict=True):
            tokens[slot - first] = token
        # An idle row in between writes behind its own last token, where its next real token will overwrite it.
        positions = self._lengths[first:last]
        longest = max(self._lengths[slot] for slot in slots) + 1
        span = min(self.max_seq_len, -(-longest // KEYS_STEP) * KEYS_STEP)
        logits = None if self._replays is None else self._replays.step(tokens, positions, span, self._cache)
        if logits is None:
            step, places = (torch.tensor(values, device=self._device) for values in (tokens, positions))
            logits = self._run_decode(step, places, span, first)
        for slot in slots:
            self._lengths[slot] += 1
        rows = [slot - first for slot in slots]
        return logits if rows == list(range(last - first)) else logits[rows]

    def _run_decode(self, tokens: Tensor, positions: Tensor, keys: int, first: int = 0) -> Tensor:
        inputs = [tokens, positions, self._counting[:keys]]
        logits: Tensor = self._packages["decode"].run(inputs + self._rows(first, first + len(tokens)))
        return logits

    def load_blocks(self, slot: int, blocks: Sequence[int]) -> None:
        """The slot holds the tokens of these stored blocks, in order, so that a prompt can start behind them."""
        count = len(blocks) * self.block_tokens
        index = torch.tensor(blocks, device=self._device)
        self._in_blocks(slot, count).copy_(self._store.index_select(2, index))
        self._lengths[slot] = count

    def save_blocks(self, slot: int, placed: Sequence[tuple[int, int]]) -> None:
        """Copies blocks of a slot, by their index in it, into the store.

        Raises: ValueError when the slot does not hold one of them whole.
        """
        sources, targets = zip(*placed, strict=True)
        whole = self._lengths[slot] // self.block_tokens
        if max(sources) >= whole:
            raise ValueError(f"slot {slot} holds {whole} whole blocks, no block {max(sources)}")
        found = self._in_blocks(slot, whole * self.block_tokens)
        chosen = found.index_select(2, torch.tensor(sources, device=self._device))
        self._store.index_copy_(2, torch.tensor(targets, device=self._device), chosen)

    def _in_blocks(self, slot: int, count: int) -> Tensor:
        """The first ``count`` tokens of a slot as [2 L, K, blocks, tokens, D]."""
        layers, _, heads, _, width = self._cache.shape
        return self._cache[:, slot, :, :count].view(layers, heads, -1, self.block_tokens, width)

    def release(self, slot: int) -> None:
        """Frees a slot; one that is free already stays so."""
        self._lengths[slot] = 0
        if self._replays is not None:
            self._replays.between_requests(idle=not any(self._lengths))

    def wipe(self, slot: int) -> None:
        """Nothing of what the slot held can be met again: a mask hides numbers, but what is none stays none."""
        self._cache[:, slot].zero_()

    @property
    def eager_steps(self) -> Mapping[str, int]:
        """Decode steps that no captured graph could take, by reason; empty on a processor."""
        return {} if self._replays is None else self._replays.eager

    def shapes(self, mode: str = "full") -> list[str]:
        """Keys of the shapes to warm: every decode batch, prompt lengths, stored blocks; or just one (``single``)."""
        if mode == "single":
            return ["prefill:1"]
        longest = min(self.max_input_len, self.max_seq_len - 1)
        lengths = sorted({*padded_sizes(min(self.piece_tokens, longest)), longest})
        sizes = {"prefill": lengths, "decode": range(1, self.max_batch_size + 1), "blocks": range(1, 2)}
        if self._replays is not None:
            sizes["decode"] = self._replays.buckets
        if not self.stored_blocks:
            del sizes["blocks"]
        return [f"{phase}:{size}" for phase, found in sizes.items() for size in found]

    def run_shape(self, key: str) -> None:
        """Runs one key of ``shapes`` on free slots, which are free again afterwards.

        Raises: ValueError for an unknown key; RuntimeError when a slot it needs is in use.
        """
        phase, _, size = key.partition(":")
        if phase not in ("prefill", "decode", "blocks") or not size.isdigit() or int(size) < 1:
            raise ValueError(f"'{key}' is not a shape of this engine")
        slots = range(int(size) if phase == "decode" else 1)
        if any(self._lengths[slot] for slot in slots):
            raise RuntimeError("a slot that this shape needs is in use")
        try:
            self._run_shape(phase, int(size), slots)
        finally:
            for slot in slots:
                self.release(slot)

    def _run_shape(self, phase: str, size: int, slots: Sequence[int]) -> None:
        if phase == "prefill":
            self._warm_prompt(size)
        elif phase == "decode" and self._replays is not None:
            self._replays.capture(size)
        elif phase == "blocks":
            self.load_blocks(0, range(size))
            self.save_blocks(0, [(block, block) for block in range(size)])
        else:
            for slot in slots:
                self._lengths[slot] = 1
            self.decode(slots, [0] * size)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _warm_prompt(self, size: int) -> None:
        """Runs the last piece of a prompt: the sizes before it are keys of their own."""
        start = (size - 1) // self.piece_tokens * self.piece_tokens
        self._lengths[0] = start
        self.prefill(0, [0] * (size - start), start)

    def _check_decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> None:
        if not slots or len(set(slots)) != len(slots) or len(slots) != len(token_ids):
            raise ValueError("decode needs one token for each of at least one different slots")
        for slot in slots:
            if not 0 < self._lengths[slot] < self.max_seq_len:
                raise ValueError(
                    f"slot {slot} holds {self._lengths[slot]} of {self.max_seq_len} tokens: no step possible"
                )

    def _rows(self, first: int, last: int) -> list[Tensor]:
        if (first, last) not in self._views:
            self._views[first, last] = [layer[first:last] for layer in self._layers]
        return self._views[first, last]


def read_engine_info(engine_dir: Path) -> dict[str, Any]:
    """The content of ``engine.json``.

    Raises: ToolkitError when there is none, or it has another format.
    """
    info = read_json(engine_dir / "engine.json")
    if info.get("format") != ENGINE_FORMAT:
        raise ToolkitError(
            f"engine format {info.get('format')} is not {ENGINE_FORMAT}",
            str(engine_dir / "engine.json"),
            "Build it again: coexist build --force.",
            code="engine_format",
        )
    return info


def check_fits(info: Mapping[str, Any], engine_dir: Path, device: str) -> None:
    """Raises ToolkitError when the engine was compiled for another kind of device or for a processor with more."""
    built_for = str(info["device"])
    if built_for != device.partition(":")[0]:
        raise ToolkitError(
            f"the engine is compiled for {built_for}, not for {device}",
            str(engine_dir),
            f"Set options.device: {device.partition(':')[0]} in the recipe and build again.",
            code="engine_device",
        )
    missing = missing_features(info.get("cpu_features", ()))
    if missing:
        raise ToolkitError(
            f"the engine needs processor features this machine lacks: {', '.join(missing)}",
            str(engine_dir),
            "Build it on this machine: coexist build.",
            code="engine_cpu",
        )
    if info["kv_cache"]["reuse"] and info["fmha"] == "disable":
        raise ToolkitError(
            "the engine is built without fused attention, so prefixes of its KV cache cannot be reused",
            str(engine_dir),
            "Set 'kv_cache: {reuse: false}' in the recipe, or 'fmha: enable', and build again.",
            code="fmha",
        )


def _open_packages(engine_dir: Path, device: str) -> dict[str, native.Package]:
    if device.startswith("cuda"):
        torch.zeros(1, device=device)  # makes the context
    return {phase: native.open_package(engine_dir / f"{phase}.pt2", device) for phase in PHASES}


def _give_weights(
    engine_dir: Path, info: Mapping[str, Any], device: str, packages: Mapping[str, native.Package]
) -> int:
    """Bytes of the weights, which all packages share from now on."""
    weights = load_tensors(engine_dir / "model.safetensors", device)
    bytes_read = sum(tensor.nbytes for tensor in weights.values())
    if info["packed"]:
        weights = packing.pack(weights)
    for package in packages.values():
        package.give(weights)
    return bytes_read


def _new_cache(info: Mapping[str, Any], device: str) -> tuple[Tensor, Tensor]:
    kv, dtype = info["kv_cache"], getattr(torch, info["dtype"])
    sizes = divide(info, dtype.itemsize, _budget_bytes(info, device))
    layers, heads, width = 2 * kv["layers"], kv["heads"], kv["head_dim"]
    cache = torch.zeros((layers, sizes.slots, heads, kv["length"], width), dtype=dtype, device=device)
    store = torch.zeros((layers, heads, sizes.blocks, kv["block_tokens"], width), dtype=dtype, device=device)
    return cache, store


def _budget_bytes(info: Mapping[str, Any], device: str) -> int | None:
    """What the ledger's budget leaves for the KV cache on a GPU; None: main memory, which has no budget."""
    if not device.startswith("cuda"):
        return None
    index = torch.device(device).index or 0  # not every function takes a device without one
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    allowed_bytes = int(torch.cuda.get_per_process_memory_fraction(index) * total_bytes)
    allowed_bytes -= torch.cuda.memory_reserved(index)
    return min(free_bytes, allowed_bytes) - workspace_bytes(info)


def _timed(name: str, on_part: OnPart, work: Callable[[], _Result]) -> _Result:
    begin = time.monotonic()
    result = work()
    on_part(name, time.monotonic() - begin)
    return result
