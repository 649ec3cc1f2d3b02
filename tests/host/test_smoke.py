from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.host import smoke
from toolkit.host.health import GpuHealth

# A driver of two GPUs: its kernel is acted out on launch. WRONG spoils numbers, HANG never comes back.
DRIVER = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static unsigned *memory;
static int current = -1;
int cuInit(unsigned flags) { return getenv("NO_DEVICE") ? 100 : 0; }
int cuGetErrorString(int status, const char **text) { *text = "no CUDA-capable device is detected"; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { current = device; *context = &current; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(unsigned long *at, size_t size) { memory = calloc(1, size); *at = (unsigned long)memory; return 0; }
int cuMemsetD8_v2(unsigned long at, unsigned char value, size_t size) { return 0; }
int cuModuleLoadData(void **module, const void *image) { return strstr(image, ".entry mark") ? 0 : 200; }
int cuModuleGetFunction(void **function, void *module, const char *name) { return strcmp(name, "mark") ? 500 : 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    unsigned *out = *(unsigned **)arguments[0];
    if (HANG && current == 1) for (;;) sleep(60);
    for (unsigned i = 0; i < bx; i++) out[i] = i * 3 + (WRONG && current == 1 ? 2 : 1);
    return 0;
}
int cuCtxSynchronize(void) { return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long from, size_t size) { memcpy(to, (void *)from, size); return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuMemFree_v2(unsigned long at) { free((void *)at); return 0; }
"""


def no_nvml() -> Any:
    class Error(Exception):
        pass

    def refuse() -> None:
        raise Error("NVML Shared Library Not Found")

    return SimpleNamespace(NVMLError=Error, nvmlInit=refuse)


@pytest.fixture
def driver(tmp_path: Path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")

    def build(*, wrong: bool = False, hang: bool = False) -> str:
        source, library = tmp_path / "cuda.c", tmp_path / "libcuda.so"
        source.write_text(DRIVER)
        defines = [f"-DWRONG={int(wrong)}", f"-DHANG={int(hang)}"]
        subprocess.run([compiler, "-shared", "-fPIC", *defines, "-o", library, source], check=True, timeout=60)
        return str(library)

    return build


def kernels(found: smoke.Smoke) -> dict[str, str]:
    return {probe.subject: probe.state for probe in found.probes if probe.name == "kernel"}


def run(tmp_path: Path, driver: str, **changes: Any) -> smoke.Smoke:
    dev = tmp_path / "dev"
    dev.mkdir(exist_ok=True)
    return smoke.run(dev, driver=driver, nvml=no_nvml, **{"environ": {}, **changes})


def test_a_machine_without_gpus_says_so_and_fails_nothing(tmp_path: Path) -> None:
    found = run(tmp_path, str(tmp_path / "none.so"))
    assert found.ok
    assert found.gpus == 0
    assert "no GPU here" in found.summary
    assert json.loads(json.dumps(found.document()))["ok"] is True


def test_a_container_that_was_to_have_gpus_and_has_none_fails(tmp_path: Path) -> None:
    found = run(tmp_path, str(tmp_path / "none.so"), environ={"NVIDIA_VISIBLE_DEVICES": "all"})
    assert not found.ok
    assert run(tmp_path, str(tmp_path / "none.so"), environ={"NVIDIA_VISIBLE_DEVICES": "void"}).ok


def test_a_kernel_runs_on_every_gpu(tmp_path: Path, driver) -> None:
    found = run(tmp_path, driver())
    assert kernels(found) == {"GPU 0": "ok", "GPU 1": "ok"}
    assert found.gpus == 2
    assert found.ok


def test_a_gpu_that_computes_wrong_fails_and_the_other_does_not(tmp_path: Path, driver) -> None:
    found = run(tmp_path, driver(wrong=True))
    assert kernels(found) == {"GPU 0": "ok", "GPU 1": "fail"}
    assert not found.ok


def test_a_gpu_that_hangs_is_named_after_the_time_limit(tmp_path: Path, driver) -> None:
    found = run(tmp_path, driver(hang=True), limit_s=3.0)
    assert kernels(found) == {"GPU 0": "ok", "GPU 1": "fail"}
    assert any("no answer in 3 s" in probe.detail for probe in found.probes)


def test_device_nodes_that_are_missing_or_closed_fail(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia0"):
        (dev / name).touch()
    found = {probe.detail.split()[0]: probe.state for probe in smoke.device_nodes(dev)}
    assert found[str(dev / "nvidia-uvm")] == "fail"
    assert found[str(dev / "nvidia0")] == "ok"


class Nvml:
    """A module of one GPU with uncorrected errors, a remap that waits, and a fabric that is not ready."""

    class NVMLError(Exception):
        pass

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlSystemGetDriverVersion(self) -> str:
        return "590.44.01"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 1:
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return b"GPU-1"

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=b"00000000:0A:00.0")

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        return 3

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:
        return 1, 0, 1, 0


def test_errors_that_nvml_counts_fail_and_a_lost_gpu_is_named(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "kmsg").write_text("6,1,2,-;NVRM: Xid (PCI:0000:0a:00): 79, pid=7, GPU has fallen off the bus.\n")
    found = smoke.run(dev, driver=str(tmp_path / "none.so"), nvml=Nvml, environ={})
    states = {(probe.name, probe.subject): probe for probe in found.probes}
    assert states["ecc", "GPU 0"].state == "fail"
    assert "waits for a reset" in states["row remap", "GPU 0"].detail
    assert "Xid 79" in states["xid", "GPU 0"].detail
    assert "GPU is lost" in states["nvml", "GPU 1"].detail
    assert not found.ok


def test_what_nobody_tells_is_unknown_and_no_failure() -> None:
    quiet = GpuHealth(0)
    assert {probe.state for probe in smoke._state(quiet)} == {"unknown"}
    assert smoke._xid(quiet, None).state == "unknown"


def test_a_fabric_that_is_not_ready_fails_and_nvswitch_without_an_answer_is_unknown(tmp_path: Path) -> None:
    (waiting,) = smoke.fabric(tmp_path, (GpuHealth(0, fabric="in progress", fabric_ready=False),))
    assert waiting.state == "fail"
    (tmp_path / "nvidia-nvswitchctl").touch()
    (untold,) = smoke.fabric(tmp_path, (GpuHealth(0),))
    assert untold.state == "unknown"
    assert list(smoke.fabric(tmp_path / "none", (GpuHealth(0),))) == []
