from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.environments.conftest import SITE, Compiler, Torch, install, make_venv
from toolkit.environments import extensions, reading
from toolkit.environments.loader import Files


def selected(venv: Path, site: Path, *, everything: bool = False) -> dict[str, str]:
    chosen = extensions.select(reading.read(venv), Files(), everything=everything)
    return {extension.path.relative_to(site).as_posix(): extension.reason for extension in chosen.extensions}


def touch(site: Path, *names: str) -> list[Path]:
    for name in names:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(b"\x7fELF")
    return [site / name for name in names]


def test_known_packages_count_with_and_without_a_record(venv: Path, site: Path) -> None:
    recorded = touch(site, "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so", "vllm/_C.abi3.so", "numpy/core.so")
    install(site, "mixed", record=recorded)
    touch(site, "tensorrt_llm/libs/libth_common.so", "tensorrt_llm/bindings.cpython-311-x86_64-linux-gnu.so")
    assert selected(venv, site) == {
        "flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so": "package",
        "tensorrt_llm/bindings.cpython-311-x86_64-linux-gnu.so": "package",
        "tensorrt_llm/libs/libth_common.so": "package",
        "vllm/_C.abi3.so": "package",
    }
    assert selected(venv, site, everything=True)["numpy/core.so"] == "asked"


@pytest.mark.parametrize("name", ["sgl_kernel/ops.abi3.so", "flashinfer/x.so", "xformers/_C.so", "torchvision/_C.so"])
def test_servers_and_their_kernels_are_known_by_name(venv: Path, site: Path, name: str) -> None:
    touch(site, name)
    assert list(selected(venv, site)) == [name]


def test_anything_that_needs_torchs_libraries_counts(compile_library: Compiler, venv: Path, site: Path) -> None:
    torch = Torch(compile_library, site).make()
    torch.extension(site, "unheard_of")
    assert selected(venv, site) == {"unheard_of.cpython-x-linux-gnu.so": "torch"}


def test_private_copies_are_left_to_the_files_that_need_them(venv: Path, site: Path) -> None:
    names = ["torchvision.libs/libz.so.1", "nvidia/cublas/lib/libcublas.so.12", "torch/lib/libtorch.so", "vllm/_C.so"]
    install(site, "all", record=touch(site, *names))
    assert list(selected(venv, site, everything=True)) == ["vllm/_C.so"]


def test_files_that_changed_or_went_since_their_install_are_told(venv: Path, site: Path) -> None:
    changed, gone, same = touch(site, "vllm/changed.so", "vllm/gone.so", "vllm/same.so")
    install(site, "vllm", record=[changed, gone, same])
    changed.write_bytes(b"\x7fELF but another file")
    gone.unlink()
    chosen = extensions.select(reading.read(venv), Files())
    assert {e.path.name: e.changed for e in chosen.extensions} == {"changed.so": True, "same.so": False}
    assert [(e.path.name, e.distribution) for e in chosen.missing] == [("gone.so", "vllm")]


def test_there_is_a_limit_and_passing_it_is_told(venv: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(site, "vllm/a.so", "vllm/b.so", "vllm/c.so")
    assert extensions.select(reading.read(venv), Files()).complete
    monkeypatch.setattr(extensions, "MAX_FILES", 2)
    chosen = extensions.select(reading.read(venv), Files())
    assert not chosen.complete
    assert len(chosen.extensions) == 2


def test_every_compiled_file_of_the_tests_own_environment_is_looked_at() -> None:
    chosen = extensions.select(reading.read(Path(sys.executable)), Files(), everything=True)
    assert chosen.missing == ()
    modules = {p for p in SITE.rglob("*.cpython-*.so") if "torch" not in p.relative_to(SITE).parts[0]}
    assert modules <= {extension.path for extension in chosen.extensions}


def test_a_hidden_installation_does_not_count(tmp_path: Path) -> None:
    site = make_venv(tmp_path / "venv")
    first = tmp_path / "first"
    install(first, "vllm", "2", record=touch(first, "vllm/_C.so"))
    install(site, "vllm", "1", record=touch(site, "vllm/_C.so"))
    environment = reading.read(tmp_path / "venv", environ={"PYTHONPATH": str(first)})
    chosen = extensions.select(environment, Files())
    assert first / "vllm/_C.so" in [extension.path for extension in chosen.extensions]
    assert site / "vllm/_C.so" not in [extension.path for extension in chosen.extensions]


def test_compiled_files_of_an_editable_install_are_in_its_source(venv: Path, site: Path, tmp_path: Path) -> None:
    source = tmp_path / "vllm-source"
    (file,) = touch(source, "vllm/_C.abi3.so")
    info = install(site, "vllm")
    (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}}))
    chosen = extensions.select(reading.read(venv), Files())
    assert [extension.path for extension in chosen.extensions] == [file]


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("_C.cpython-310-x86_64-linux-gnu.so", "3.10"),
        ("_C.cpython-313t-x86_64-linux-gnu.so", "3.13"),
        ("_C.abi3.so", None),
    ],
)
def test_a_name_may_tie_a_file_to_one_python(name: str, python: str | None) -> None:
    assert extensions.Extension(Path("/x") / name, "package").python == python
