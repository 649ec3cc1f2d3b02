from __future__ import annotations

import threading
import time
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from toolkit.errors import ToolkitError
from toolkit.serve.native import LoaderPackage, NativePackage, open_package

WIDTH = 512


class Scale(nn.Module):
    """Writes into its last input too, as the KV cache is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, WIDTH), requires_grad=False)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        kept.add_(1)
        return x @ self.weight


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("native") / "scale.pt2"
    rows = torch.export.Dim("rows", min=1, max=1 << 20)
    program = torch.export.export(
        Scale(), (torch.ones(3, WIDTH), torch.zeros(2)), dynamic_shapes=({0: rows}, None), strict=False
    )
    options = {"aot_inductor.package_constants_in_so": False}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    return path


@pytest.mark.slow
def test_a_package_runs_with_the_weights_it_was_given_and_changes_its_inputs(package: Path) -> None:
    opened = open_package(package, "cpu")
    assert isinstance(opened, NativePackage)
    weight, kept = torch.full((WIDTH, WIDTH), 2.0), torch.zeros(2)
    opened.give({"weight": weight})
    assert opened.run([torch.ones(5, WIDTH), kept])[4, 0] == 2 * WIDTH
    weight.fill_(3.0)
    assert opened.run([torch.ones(1, WIDTH), kept])[0, 0] == 3 * WIDTH
    assert kept.tolist() == [2.0, 2.0]


@pytest.mark.slow
def test_torch_s_loader_gives_the_same(package: Path) -> None:
    weights = {"weight": torch.randn(WIDTH, WIDTH)}
    x = torch.randn(4, WIDTH)
    by_loader, by_library = LoaderPackage(package, "cpu"), open_package(package, "cpu")
    for opened in (by_loader, by_library):
        opened.give(weights)
    assert torch.equal(by_loader.run([x, torch.zeros(2)]), by_library.run([x, torch.zeros(2)]))


@pytest.mark.slow
def test_other_threads_go_on_while_a_package_runs(package: Path) -> None:
    opened = open_package(package, "cpu")
    opened.give({"weight": torch.ones(WIDTH, WIDTH)})
    x, running, counted = torch.ones(200_000, WIDTH), threading.Event(), [0]

    def count() -> None:
        while not running.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    opened.run([x, torch.zeros(2)])
    during = counted[0] - before
    running.set()
    thread.join()
    assert during > 3


@pytest.mark.slow
def test_a_missing_weight_is_named(package: Path) -> None:
    with pytest.raises(KeyError, match="weight"):
        open_package(package, "cpu").give({})


def test_a_file_that_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_bytes(b"no archive")
    with pytest.raises(ToolkitError, match="cannot be loaded"):
        open_package(tmp_path / "x.pt2", "cpu")


@pytest.mark.parametrize("content", [None, b"no library"])
def test_an_archive_without_a_library_that_loads_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/version", "1")
        if content is not None:
            archive.writestr("x/data/aotinductor/model/a.so", content)
    with pytest.raises(ToolkitError, match="cannot be loaded"):
        open_package(path, "cpu")
