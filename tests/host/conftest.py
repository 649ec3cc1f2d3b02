from __future__ import annotations

import pytest

from tests.host.machines import Machine


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)
