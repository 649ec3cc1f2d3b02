from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest

from toolkit.host import context, gpu_use, probe
from toolkit.host.context import CHILD, Kept, holding, measure_on, pick
from toolkit.host.gpu_use import DeviceUse
from toolkit.host.model import Gpu, Holder, MigDevice
from toolkit.units import GIB, MIB

H200 = Gpu(index=0, uuid="GPU-a", name="NVIDIA H200", memory_bytes=140 * GIB, used_bytes=GIB, compute_mode="Default")
BUSY = (Holder(pid=7, name="python3", used_bytes=GIB), Holder(pid=None, name="driver", used_bytes=GIB))
HOLDS = "import sys; print('held', flush=True); sys.stdin.read()"
REFUSES = "import sys; sys.exit(1)"


def gpu(**changes):
    return H200.model_copy(update=changes)


def counting(size):
    asked = []

    def measure(uuid):
        asked.append(uuid)
        return size

    return measure, asked


def child(tmp_path, text):
    path = tmp_path / "child.py"
    path.write_text(text)
    return path


def readings(*used):
    left = list(used)
    return lambda: (DeviceUse("GPU-a", 0, 140 * GIB, left.pop(0) if len(left) > 1 else left[0]),)


def test_a_context_is_measured_once_per_driver_and_model(tmp_path):
    measure, asked = counting(700 * MIB)
    file = tmp_path / "host/contexts.json"
    two = (H200, gpu(index=1, uuid="GPU-b"))
    assert Kept(file, measure=measure)("580.95", two) == 700 * MIB
    assert Kept(file, measure=measure)("580.95", two) == 700 * MIB
    assert asked == ["GPU-a"]
    Kept(file, measure=measure)("590.1", two)
    assert asked == ["GPU-a", "GPU-a"]
    assert json.loads(file.read_text())["bytes"] == {
        "driver 580.95, NVIDIA H200": 700 * MIB,
        "driver 590.1, NVIDIA H200": 700 * MIB,
    }


def test_of_unlike_gpus_the_largest_context_counts_and_one_unknown_makes_it_unknown(tmp_path):
    sizes = {"GPU-a": 700 * MIB, "GPU-b": 300 * MIB, "GPU-c": None}
    small, strange = gpu(uuid="GPU-b", name="L4"), gpu(uuid="GPU-c", name="?")
    kept = Kept(tmp_path / "contexts.json", measure=sizes.get)
    assert kept("580", (H200, small)) == 700 * MIB
    assert kept("580", (H200, small, strange)) is None


def test_each_mig_profile_has_its_own_context(tmp_path):
    parts = tuple(MigDevice(uuid=f"MIG-{n}", index=n, profile=f"{n}g.10gb", memory_bytes=10 * GIB) for n in (1, 2))
    measure, asked = counting(100 * MIB)
    assert Kept(tmp_path / "contexts.json", measure=measure)("580", (gpu(mig=parts),)) == 100 * MIB
    assert asked == ["MIG-1", "MIG-2"]


def test_a_damaged_file_is_measured_again_and_written_whole(tmp_path):
    file = tmp_path / "contexts.json"
    file.write_text('{"schema": 1, "byt')
    measure, _ = counting(700 * MIB)
    assert Kept(file, measure=measure)("580", (H200,)) == 700 * MIB
    assert json.loads(file.read_text())["schema"] == 1


def test_nothing_is_measured_while_somebody_starts_on_the_gpu(tmp_path):
    measure, asked = counting(700 * MIB)
    assert Kept(tmp_path / "contexts.json", lambda _: nullcontext(False), measure)("580", (H200,)) is None
    assert asked == []
    assert not (tmp_path / "contexts.json").exists()


@pytest.mark.parametrize(
    ("gpus", "picked"),
    [
        ([gpu(holders=BUSY), gpu(uuid="GPU-b")], "GPU-b"),
        ([gpu(holders=BUSY)], "GPU-a"),
        ([gpu(holders=BUSY[1:], compute_mode="Exclusive_Process")], "GPU-a"),
        ([gpu(holders=BUSY, compute_mode="Exclusive_Process")], None),
        ([gpu(compute_mode="Prohibited")], None),
        ([gpu(holders=BUSY, compute_mode=None)], None),
        ([gpu(holders=BUSY, used_bytes=139 * GIB)], None),
        ([gpu(holders=BUSY, used_bytes=None)], None),
        ([], None),
    ],
    ids=["idle", "shared", "exclusive-idle", "exclusive-busy", "prohibited", "mode-unknown", "full", "unknown", "none"],
)
def test_an_idle_gpu_is_measured_and_never_one_that_somebody_has_alone(gpus, picked):
    assert pick([(each, each) for each in gpus]) == picked


def test_the_size_is_the_growth_while_a_child_holds_a_context(tmp_path):
    holds = child(tmp_path, HOLDS)
    assert measure_on("GPU-a", readings(GIB, GIB + 700 * MIB, GIB + 5 * MIB), holds) == 700 * MIB


def test_a_neighbour_that_moves_meanwhile_makes_it_measure_again(tmp_path):
    moved = readings(2 * GIB, 3 * GIB, GIB, GIB, GIB + 500 * MIB, GIB)
    assert measure_on("GPU-a", moved, child(tmp_path, HOLDS)) == 500 * MIB


def test_a_gpu_that_never_stands_still_gives_no_size(tmp_path):
    falling = [n * GIB for n in range(30, 0, -1)]
    assert measure_on("GPU-a", readings(*falling), child(tmp_path, HOLDS)) is None


def test_a_refused_context_gives_no_size(tmp_path):
    assert measure_on("GPU-a", readings(GIB), child(tmp_path, REFUSES)) is None


def test_a_device_that_is_gone_gives_no_size(tmp_path):
    assert measure_on("GPU-z", readings(GIB), child(tmp_path, HOLDS)) is None


def test_the_child_sees_one_device_and_is_gone_after_the_block(tmp_path):
    told = tmp_path / "told"
    text = f"import os; open({str(told)!r}, 'w').write(repr(sorted(os.environ.items())) + str(os.getpid())); {HOLDS}"
    with holding("GPU-a", child(tmp_path, text)) as held:
        assert held
        seen = told.read_text()
    assert "('CUDA_VISIBLE_DEVICES', 'GPU-a')" in seen
    assert "('CUDA_DEVICE_ORDER', 'PCI_BUS_ID')" in seen
    assert "COEXIST" not in seen


def test_without_a_driver_the_real_child_says_what_refused():
    missing = [sys.executable, "-I", "-S", "-c", _MAIN.format(folder=str(CHILD.parent))]
    done = subprocess.run(missing, capture_output=True, text=True, check=False, input="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("loading the driver: ")


_MAIN = "import sys; sys.path.insert(0, {folder!r}); import context_child; sys.exit(context_child.main('libnone.so.9'))"


@pytest.mark.gpu
def test_a_real_context_takes_between_a_tenth_and_four_gib():
    uses = gpu_use.read()
    if not uses:
        pytest.skip("no NVIDIA GPU")
    size = measure_on(uses[0].uuid)
    assert size is not None
    assert 100 * MIB < size < 4 * GIB


def test_on_a_host_without_gpus_nothing_is_read_or_written(tmp_path, monkeypatch):
    monkeypatch.setattr(context, "json_object", lambda _: pytest.fail("read"))
    found = probe.probe(nvml=_NoGpus(), context_bytes=Kept(tmp_path / "contexts.json"))
    assert found.context_bytes is None


class _NoGpus:
    def count(self):
        return 0

    def driver_version(self):
        return "580"

    def cuda_version(self):
        return "13.0"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for a stand-in driver")
@pytest.mark.parametrize(("code", "said"), [(0, "held\n"), (46, "")])
def test_the_real_child_holds_or_is_refused_by_the_driver(tmp_path, code, said):
    source, library = tmp_path / "cuda.c", tmp_path / "libstandin.so"
    source.write_text(
        "int cuInit(unsigned f) { return 0; } int cuDeviceGet(int *d, int n) { *d = n; return 0; }"
        f"int cuDevicePrimaryCtxRetain(void **c, int d) {{ return {code}; }}"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    text = _MAIN.format(folder=str(CHILD.parent)).replace("libnone.so.9", str(library))
    done = subprocess.run([sys.executable, "-I", "-c", text], capture_output=True, text=True, check=False, input="")
    assert (done.returncode, done.stdout) == (bool(code), said)
    assert done.stderr == (f"cuDevicePrimaryCtxRetain: CUDA error {code}\n" if code else "")
