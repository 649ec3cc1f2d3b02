from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.serve.fakes import TOKEN
from toolkit.serve.web import TOKEN_VARIABLE

# Models this small gain nothing by threads, which wait for each other a hundred times as long on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(scope="package", autouse=True)
def _compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """torch makes the folder of its cache as soon as a model is imported: not in everybody's /tmp."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


@pytest.fixture(autouse=True)
def _token_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
