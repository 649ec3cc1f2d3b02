from __future__ import annotations

import pytest
import torch

from tests.serve.fakes import TOKEN
from toolkit.serve.web import TOKEN_VARIABLE

# Models this small gain nothing by threads, which wait for each other a hundred times as long on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _token_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
