from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtimes.conftest import CPUS, GPU, context, service
from toolkit.errors import ToolkitError
from toolkit.runtimes import environment
from toolkit.runtimes.base import Assignment

LLM = service(runtime="torch", engine="llm")
NAMES = st.sampled_from(["HOME", "PATH", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "OMP_PROC_BIND", "LANG"])


@given(st.dictionaries(NAMES | st.text(min_size=1), st.text()))
def test_nothing_of_the_parent_gets_in_unasked(parent: dict[str, str]):
    env = environment.build(context(LLM, environ=parent), CPUS)
    allowed = {"PATH", *environment.INHERITED}
    assert not {name for name in parent if name in env and name not in allowed and env[name] == parent[name]}
    assert set(env) == set(environment.build(context(LLM), CPUS)) | (set(parent) & set(env))


def test_secrets_of_the_parent_stay_with_the_parent():
    env = environment.build(context(LLM, environ={"HF_TOKEN": "hf_x", "HOME": "/home/ann", "LD_PRELOAD": "x.so"}), CPUS)
    assert env["HOME"] == "/home/ann"
    assert {"HF_TOKEN", "LD_PRELOAD"}.isdisjoint(env)


def test_programs_beside_the_interpreter_come_first():
    env = environment.build(context(LLM, environ={"PATH": "/usr/bin"}), CPUS)
    assert env["PATH"] == "/opt/env/bin:/usr/bin"


def test_without_a_gpu_none_is_visible():
    assert environment.build(context(LLM), CPUS)["CUDA_VISIBLE_DEVICES"] == ""


def test_gpus_are_named_by_uuid_in_plan_order():
    two = Assignment(cpus=(0,), port=1, device_uuids=("GPU-b", "MIG-a"))
    env = environment.build(context(LLM), two)
    assert (env["CUDA_VISIBLE_DEVICES"], env["CUDA_DEVICE_ORDER"]) == ("GPU-b,MIG-a", "PCI_BUS_ID")


def test_threads_are_as_many_as_physical_cores():
    env = environment.build(context(LLM), CPUS)
    assert {env[name] for name in environment.THREAD_COUNTS} == {"2"}
    unknown = environment.build(context(LLM), Assignment(cpus=(4, 5, 6), port=1))
    assert unknown["OMP_NUM_THREADS"] == "3"


def test_every_cache_is_the_services_own():
    env = environment.build(context(LLM), GPU)
    folders = [env[name] for name in environment.CACHE_FOLDERS]
    assert all(folder.startswith("/var/coexist/caches/llm/") for folder in folders)
    assert len(set(folders)) == len(folders)


def test_the_services_own_variables_come_last():
    made = service(runtime="torch", engine="llm", env={"OMP_NUM_THREADS": "7", "HF_HUB_OFFLINE": "0", "MY": "x"})
    env = environment.build(context(made), CPUS)
    assert (env["OMP_NUM_THREADS"], env["HF_HUB_OFFLINE"], env["MY"]) == ("7", "0", "x")


def test_no_variable_pins_threads_unasked():
    assert not set(environment.PINNING) & set(environment.build(context(LLM), CPUS))


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "COEXIST_TOKEN"])
def test_what_the_plan_sets_can_not_be_overridden(name: str):
    with pytest.raises(ToolkitError) as caught:
        environment.check("llm", {name: "0"})
    assert (caught.value.where, caught.value.code) == (f"services.llm.env.{name}", "env_reserved")
