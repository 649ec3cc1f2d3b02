from __future__ import annotations

import subprocess
import sys

import pytest

from tests.runtimes.conftest import ENGINE, GPU, engine_context, model_context, service
from toolkit.runtimes import builtin, flash, torch
from toolkit.runtimes.base import Launch


def engine() -> Launch:
    made = engine_context(service(runtime="torch", engine="llm", gpus=1), engine_manifest={**ENGINE, "device": "cuda"})
    return torch.TorchRuntime().launch(made, GPU)


def frontend() -> Launch:
    return flash.FlashRuntime().launch(model_context(service(runtime="flash", model="m", gpus=1)), GPU)


@pytest.mark.parametrize(("launch", "options"), [(engine(), torch.OPTIONS), (frontend(), flash.OPTIONS)])
def test_the_server_has_every_flag_that_a_launch_may_give_it(launch: Launch, options: dict[str, torch.Option]):
    verb = launch.argv[2]
    asked = [sys.executable, str(builtin.RUN), verb, "--help"]
    known = subprocess.run(asked, capture_output=True, check=True, text=True).stdout
    flags = [argument for argument in launch.argv if argument.startswith("--")]
    flags += [option.flag for option in options.values()]
    assert [flag for flag in flags if f"{flag} " not in known] == []
