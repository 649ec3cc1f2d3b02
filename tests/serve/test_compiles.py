from __future__ import annotations

import sys
from collections import Counter, defaultdict
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from toolkit.serve import compiles


class KernelCache:
    """As the library's: no length of its own, a dict inside."""

    def __init__(self, *keys: str) -> None:
        self.cache = dict.fromkeys(keys)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


def test_kernels_of_flash_attention_are_counted_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = SimpleNamespace(compile_cache=KernelCache("a", "b"))
    combine = SimpleNamespace(compile_cache={"c": 1})
    module(monkeypatch, "flash_attn.cute", forward=forward)
    module(monkeypatch, "flash_attn.cute.interface", forward=forward, combine=combine, other=object())
    assert compiles.flash_kernels() == 3
    forward.compile_cache.cache["d"] = None
    assert compiles.flash_kernels() == 4


def test_graphs_and_kernels_of_torch_s_compiler_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
    module(monkeypatch, "torch._dynamo.utils", counters=counters)
    module(monkeypatch, "torch._inductor.metrics", generated_kernel_count=0)
    before = compiles.count()
    counters["stats"]["unique_graphs"] = 2
    module(monkeypatch, "torch._inductor.metrics", generated_kernel_count=5)
    assert compiles.count() - before == 7


def test_counting_imports_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]:
        monkeypatch.delitem(sys.modules, name)
    assert compiles.count() == 0
    assert not any(name.startswith(("torch._dynamo", "torch._inductor")) for name in sys.modules)


def test_kernels_are_named_by_the_keys_of_the_librarys_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = SimpleNamespace(compile_cache=KernelCache((128, "bf16", True)), __module__="flash_attn.cute.interface")
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", SimpleNamespace(forward=forward, again=forward))
    named = [key for key in compiles.compiled_keys() if key.startswith("flash_attn")]
    assert named == ["flash_attn.cute.interface.SimpleNamespace.compile_cache: (128, 'bf16', True)"]


def test_what_inductor_generated_is_named_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SimpleNamespace(modules=[SimpleNamespace(__name__="torch._inductor.runtime.compile_tasks.cabc")])
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", SimpleNamespace(PyCodeCache=cache))
    assert "inductor: cabc" in compiles.compiled_keys()
