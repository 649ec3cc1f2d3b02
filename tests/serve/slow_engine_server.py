"""An engine server over a fake engine that takes its time: a program for tests of signals and ports."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from tests.serve.fakes import FakeEngine
from toolkit.serve.engine_server import main

STEP_S = 0.02


class SlowEngine(FakeEngine):
    def decode(self, slots: Sequence[int], token_ids: Sequence[int]) -> torch.Tensor:
        time.sleep(STEP_S)
        return super().decode(slots, token_ids)


def load(engine_dir: Path, device: str, on_part: Callable[[str, float], None]) -> SlowEngine:
    return SlowEngine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load))
