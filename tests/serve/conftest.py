from __future__ import annotations

import pytest

from tests.serve.fakes import TOKEN
from toolkit.serve.web import TOKEN_VARIABLE


@pytest.fixture(autouse=True)
def _token_of_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
