from __future__ import annotations

import pytest

from toolkit.config.models import Service
from toolkit.errors import ToolkitError
from toolkit.runtimes import devices


def service(**keys):
    return Service.model_validate({"runtime": "vllm", **keys})


def test_each_rank_needs_a_gpu_and_ranks_are_tensor_times_pipeline_parts():
    asked = service(tp_size=2, pp_size=3, gpus=4)
    assert asked.world_size == 6
    with pytest.raises(ToolkitError, match="tp_size 2 x pp_size 3 is 6 ranks, not 4 GPUs") as refused:
        devices.check("llm", asked)
    assert (refused.value.where, refused.value.code) == ("services.llm.gpus", "world_size")
    assert "gpus: 6" in refused.value.hint


@pytest.mark.parametrize("gpus", [0, 6])
def test_as_many_gpus_as_ranks_or_none_at_all_are_taken(gpus):
    devices.check("llm", service(tp_size=2, pp_size=3, gpus=gpus))
