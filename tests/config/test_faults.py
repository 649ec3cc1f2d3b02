from __future__ import annotations

import pytest

from tests.config.conftest import Faults


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("gpuz: 1", "services.a.gpuz: unknown key 'gpuz'. Did you mean 'gpus'?"),
        ("zzzzz: 1", "services.a.zzzzz: unknown key 'zzzzz'. Known: runtime, engine, model,"),
        ("port: '80'", "services.a.port: '80' is not a whole number"),
        ("port: 8.5", "services.a.port: 8.5 is not a whole number"),
        ("port: true", "services.a.port: true is not a whole number"),
        ("port: 0", "services.a.port: 0 is too small; it is at least 1"),
        ("gpu_memory: 60", "services.a.gpu_memory: 60 is not a size; write a number and a unit, such as 60GiB"),
        ("gpu_memory: 60G", "services.a.gpu_memory: '60G' is not a size"),
        ("gpu_memory: 0GiB", "services.a.gpu_memory: must be more than zero"),
        ("grace: 10", "services.a.grace: 10 is not a duration; write a number and a unit, such as 30s"),
        ("cpus: many", "services.a.cpus: 'many' is not a CPU list"),
        ("cpus: 0", "services.a.cpus: 0 is no CPU request"),
        ("gpus: 0,1", "services.a.gpus: '0,1' is no GPU; write an index (0), a UUID (GPU-8932f937), or a list of them"),
        ("gpus: [0, 0]", "services.a.gpus: a GPU is named twice"),
        ("gpus: {count: 1, devices: [0, 1]}", "services.a.gpus: count is 1, but 2 devices are named"),
        ("gpus: {cout: 1}", "services.a.gpus.cout: unknown key 'cout'. Did you mean 'count'?"),
        ("gpus: -1", "services.a.gpus: -1 is too small; it is at least 0"),
        ("gpus: true", "services.a.gpus: write a number of GPUs"),
        ("env: {A: 1}", 'services.a.env.A: 1 is not a text. Write it in quotes: "1".'),
        ("env: {a-b: x}", "services.a.env.a-b: 'a-b' is not a variable name."),
        ("env: [A]", "services.a.env: a list where a mapping belongs"),
        ("after: b", "services.a.after: 'b' where a list belongs. Write it in brackets: [a, b]."),
        ("canary: {expcted: x}", "services.a.canary.expcted: unknown key 'expcted'. Did you mean 'expected'?"),
        ("canary: {expected: ''}", "services.a.canary.expected: is an empty text"),
        ("canary: {path: /x, staus: 1}", "services.a.canary.staus: unknown key 'staus'. Did you mean 'status'?"),
        ("canary: Paris", "services.a.canary: 'Paris' where a mapping belongs"),
        ("ready: {log: '('}", "services.a.ready.log: '(' is not a regular expression"),
        ("ready: {path: health}", "services.a.ready.path: 'health' is not a path of a URL. It starts with '/'."),
        ("warmup: fulll", "services.a.warmup: 'fulll' is none of 'none', 'single' or 'full'. Did you mean 'full'?"),
        ("late_compile:", "services.a.late_compile: has no value"),
        ("restart: {window: 5}", "services.a.restart.window: 5 is not a duration"),
        ("warmup_requests: [{path: x}]", "services.a.warmup_requests[0].path: 'x' is not a path of a URL"),
    ],
)
def test_each_fault_is_one_clear_sentence(faults: Faults, key: str, says: str) -> None:
    (told,) = faults(f"version: 1\nname: n\nservices:\n  a:\n    runtime: command\n    argv: [x]\n    {key}\n")
    assert told.removeprefix("node.yaml:7 ").removeprefix("node.yaml:4 ").startswith(says)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: n\nservices: {a: {runtime: command, argv: [x]}}", "version: 'version' is missing. Write 'version: 1'."),
        ("version: 1\nname: N N\nservices: {a: {runtime: command, argv: [x]}}", "name: 'N N' is not a name."),
        ("version: 1\nname: n\nservices: {}", "services: is empty; it holds at least one"),
        ("version: 1\nname: n\nservices:", "services: has no value"),
        ("version: 1\nname: n\nservices: {a: 3}", "services.a: 3 where a mapping belongs"),
        ("version: 1\nname: n\nservices: {A: {runtime: command, argv: [x]}}", "services.A: 'A' is not a name."),
    ],
)
def test_faults_above_a_service_are_clear_too(faults: Faults, text: str, says: str) -> None:
    (told,) = faults(text)
    assert told.split(" ", 1)[1].startswith(says)
