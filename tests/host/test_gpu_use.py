from __future__ import annotations

from tests.host.machines import FakeGpu, FakeNvml, Machine
from toolkit.host import gpu_use
from toolkit.host.model import Holder
from toolkit.host.nvml import Memory, MigFacts, NvmlError, Process
from toolkit.units import GIB


def test_each_device_tells_its_use_and_who_holds_it(tmp_path):
    machine = Machine(tmp_path)
    machine.process(41, "python3")
    gpu = FakeGpu(id="GPU-a", total=Memory(80 * GIB, 10 * GIB, GIB), held=(Process(41, 10 * GIB),))
    (use,) = gpu_use.read(FakeNvml([gpu]), machine.proc)
    assert (use.uuid, use.index, use.total_bytes, use.used_bytes) == ("GPU-a", 0, 80 * GIB, 11 * GIB)
    assert use.holders == (
        Holder(pid=41, name="python3", used_bytes=10 * GIB),
        Holder(pid=None, name="driver", used_bytes=GIB),
    )


def test_a_partitioned_gpu_tells_of_its_slices_only(tmp_path):
    part = MigFacts(0, "MIG-a", "1g.10gb", Memory(10 * GIB, GIB), ())
    uses = gpu_use.read(FakeNvml([FakeGpu(slices=(part,))]), Machine(tmp_path).proc)
    assert [(use.uuid, use.used_bytes) for use in uses] == [("MIG-a", GIB)]


def test_a_gpu_that_does_not_answer_hides_no_other(tmp_path):
    uses = gpu_use.read(FakeNvml([NvmlError("GPU is lost"), FakeGpu(id="GPU-b")]), Machine(tmp_path).proc)
    assert [(use.uuid, use.index) for use in uses] == [("GPU-b", 1)]


def test_unlisted_processes_are_an_unknown_holder_never_nobody(tmp_path):
    gpu = FakeGpu(total=Memory(80 * GIB, 3 * GIB), held=None)
    (use,) = gpu_use.read(FakeNvml([gpu]), Machine(tmp_path).proc)
    assert use.holders == (Holder(pid=None, name=None, used_bytes=3 * GIB),)
