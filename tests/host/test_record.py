from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.errors import ToolkitError
from toolkit.host import record
from toolkit.host.model import Core, Gpu, Holder, Host
from toolkit.units import MIB

RECORDS = sorted(Path(__file__).with_name("records").glob("*.json"))

HOST = Host(
    hostname="node7",
    gpus=(
        Gpu(
            index=0,
            uuid="GPU-a",
            name="NVIDIA H200",
            memory_bytes=100 * MIB,
            used_bytes=5,
            holders=(Holder(pid=None, name=None, used_bytes=5),),
            cpus=tuple(range(16)),
        ),
    ),
    cores=(Core(cpus=(0, 1), socket=0),),
    cpus_allowed=(0, 1, 4),
    context_bytes=700 * MIB + 1,
)

GPU = {"index": 0, "uuid": "GPU-a", "name": "NVIDIA L4", "memory_bytes": MIB, "used_bytes": 0}
SLICE = {"index": 0, "uuid": "MIG-a", "profile": None, "memory_bytes": MIB}


def changed(tmp_path, **fields):
    path = tmp_path / "host.json"
    path.write_text(json.dumps(record.document(HOST) | fields))
    return path


def test_what_was_saved_is_loaded_and_marked_as_recorded(tmp_path):
    record.save(HOST, tmp_path / "host.json")
    loaded = record.load(tmp_path / "host.json")
    assert loaded.recorded
    assert loaded.gpus == HOST.gpus
    assert loaded.cores == HOST.cores
    assert loaded.context_bytes == 701 * MIB
    assert [path.name for path in tmp_path.iterdir()] == ["host.json"]


def test_a_record_carries_its_schema_and_the_size_of_a_context():
    found = record.document(HOST)
    assert (found["schema"], found["context_mib"], found["cpus_allowed"]) == (1, 701, "0-1,4")
    assert "context_bytes" not in found


@given(st.sets(st.integers(0, 300), min_size=1), st.none() | st.integers(0, 5000))
@settings(max_examples=50)
def test_any_host_survives_its_document(cpus, context_mib):
    context = None if context_mib is None else context_mib * MIB
    update = {"cpus_allowed": tuple(sorted(cpus)), "context_bytes": context, "recorded": True}
    host = HOST.model_copy(update=update)
    assert record.read(json.loads(json.dumps(record.document(host))), "x") == host


def test_an_unknown_field_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(ToolkitError, match="Did you mean 'cpus_allowed'"):
        record.load(changed(tmp_path, cpu_allowed="0"))


def test_every_fault_is_told_with_its_place(tmp_path):
    with pytest.raises(ToolkitError) as caught:
        record.load(changed(tmp_path, cpus_allowed="9-1", memory_bytes="much"))
    assert "cpus_allowed" in str(caught.value)
    assert "memory_bytes" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 2}', '{"gpus": []}', "[" * 100_000, '{"schema": 1}'])
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "host.json"
    path.write_text(text)
    with pytest.raises(ToolkitError) as caught:
        record.load(path)
    assert str(path) in str(caught.value)


def test_a_context_size_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(ToolkitError, match="context_mib"):
        record.load(changed(tmp_path, context_mib="768"))


def test_a_missing_file_or_folder_is_said(tmp_path):
    with pytest.raises(ToolkitError, match="can't be read"):
        record.load(tmp_path / "none.json")
    with pytest.raises(ToolkitError, match="can't be recorded"):
        record.save(HOST, tmp_path / "none" / "host.json")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recorded_machine_loads(path):
    host = record.load(path)
    assert record.document(host) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": [{**GPU, "index": 0}, {**GPU, "index": 1}]}, "UUID gpu-a is recorded twice"),
        ({"gpus": [GPU, {**GPU, "uuid": "GPU-b"}]}, "GPU index 0 is recorded twice"),
        ({"gpus": [{**GPU, "mig": [SLICE, {**SLICE, "index": 1}]}]}, "UUID mig-a is recorded twice"),
        ({"cores": [{"cpus": "0-1"}, {"cpus": "1-2"}]}, "the core of CPU 1 is recorded twice"),
        ({"numa": [{"node": 0, "cpus": "0"}, {"node": 0, "cpus": "1"}]}, "NUMA node 0 is recorded twice"),
        ({"numa": [{"node": 0, "cpus": "0-1"}, {"node": 1, "cpus": "1"}]}, "the node of CPU 1 is recorded twice"),
        ({"context_mib": -1}, "a number of MiB"),
    ],
)
def test_a_record_that_a_plan_could_give_away_twice_is_refused(tmp_path, fields, words):
    with pytest.raises(ToolkitError, match=words):
        record.load(changed(tmp_path, **fields))
