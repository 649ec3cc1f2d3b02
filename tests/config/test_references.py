from __future__ import annotations

import pytest

from tests.config.conftest import Faults, Write
from toolkit.config import load
from toolkit.errors import ToolkitError


def deployment_of(services: str, rest: str = "") -> str:
    return f"version: 1\nname: node\nengines: {{e: {{recipe: r.yaml}}}}\n{rest}services: {services}\n"


@pytest.mark.parametrize(
    ("service", "says"),
    [
        ("{runtime: torch}", "runtime 'torch' serves an engine; 'engine' is missing"),
        ("{runtime: torch, engine: e, model: m}", "takes its model from the engine's recipe"),
        ("{runtime: flash}", "serves a model folder; 'model' is missing"),
        ("{runtime: vllm, model: m, engine: e}", "serves a model folder, no engine"),
        ("{runtime: trtllm}", "serves an engine or a model; both are missing"),
        ("{runtime: trtllm, engine: e, model: m}", "exclude each other"),
        ("{runtime: command}", "runtime 'command' needs 'argv'"),
        ("{runtime: flash, model: m, argv: [x]}", "'argv' is for runtime 'command' only"),
        ("{runtime: flash, model: m, ready: {path: /x}}", "'ready' is for runtime 'command' only"),
        ("{runtime: flash, model: m, warmup_requests: []}", "'warmup_requests' is for runtime 'command' only"),
        ("{runtime: flash, model: m, canary: {path: /}}", "is a prompt, not an HTTP request"),
        ("{runtime: vllm, model: m, gpus: 3, tp_size: 2}", "3 GPUs cannot be divided among tp_size 2 x pp_size 1"),
        ("{runtime: vllm, model: m, gpus: 2, tp_size: 2, pp_size: 2}", "Ask for 4 GPUs"),
        ("{runtime: vllm, model: m, gpus: 0, tp_size: 2}", "0 GPUs cannot be divided"),
        ("{runtime: vllm, model: m, after: [a]}", "'a' waits for itself"),
        ("{runtime: vllm, model: m, requires: [b]}", "no service is named 'b'"),
        ("{runtime: vllm, model: m, environment: x}", "no environment is named 'x'"),
    ],
)
def test_keys_need_and_exclude_each_other(faults: Faults, service: str, says: str) -> None:
    (told,) = faults(deployment_of(f"{{a: {service}}}"))
    assert says in told


@pytest.mark.parametrize(
    "service",
    [
        "{runtime: trtllm, model: m}",
        "{runtime: trtllm, engine: e}",
        "{runtime: vllm, model: m, tp_size: 2}",
        "{runtime: vllm, model: m, gpus: 4, tp_size: 2}",
        "{runtime: vllm, model: m, gpus: [GPU-1, GPU-2], tp_size: 2}",
        "{runtime: vllm, model: m, gpus: 0}",
        "{runtime: command, argv: [x], ready: {log: up}, warmup_requests: [{path: /a}], canary: {path: /}}",
    ],
)
def test_what_fits_together_loads(write: Write, service: str) -> None:
    assert load.deployment(write(deployment_of(f"{{a: {service}}}"))).model.services["a"]


def test_a_longer_cycle_is_named_whole_and_once(faults: Faults) -> None:
    services = "".join(
        f"\n  {name}: {{runtime: vllm, model: m, after: [{after}]}}" for name, after in ("ab", "bc", "ca", "da")
    )
    assert faults(deployment_of(services)) == [
        "node.yaml:5 services.a.after: 'after' goes round in a circle: a -> b -> c -> a. Break it at one place."
    ]


def test_a_port_used_twice_names_the_other_user(faults: Faults) -> None:
    services = "{a: {runtime: vllm, model: m, port: 8001}, b: {runtime: vllm, model: m, port: 8001}}"
    (told,) = faults(deployment_of(services))
    assert told.startswith(
        "node.yaml:4 services.b.port: port 8001 is used twice, here and by services.a. Choose another"
    )


def test_a_port_used_twice_is_refused_with_the_fields_of_a_plan(write: Write) -> None:
    services = "{a: {runtime: vllm, model: m, port: 8001}, b: {runtime: vllm, model: m, port: 8001}}"
    with pytest.raises(ToolkitError) as caught:
        load.deployment(write(deployment_of(services)))
    amounts = {"resource": "port", "needed": 2, "available": 1, "services": ("b", "a")}
    assert {key: caught.value.details[key] for key in amounts} == amounts


def test_a_service_may_not_take_the_control_port(faults: Faults) -> None:
    (told,) = faults(deployment_of("{a: {runtime: vllm, model: m, port: 9000}}", "control_port: 9000\n"))
    assert "here and by coexist's control port" in told


@pytest.mark.parametrize(("host", "count"), [("127.0.0.2", 0), ("0.0.0.0", 1)])
def test_one_port_on_two_addresses_is_no_clash_unless_one_is_all_of_them(
    write: Write, faults: Faults, host: str, count: int
) -> None:
    text = deployment_of(
        f"{{a: {{runtime: vllm, model: m, port: 8001}}, b: {{runtime: vllm, model: m, port: 8001, host: {host}}}}}"
    )
    if count:
        assert len(faults(text)) == count
    else:
        assert load.deployment(write(text)).model.services["b"].host == host


def test_a_name_of_a_faulty_entry_still_counts_as_defined(faults: Faults) -> None:
    told = faults(deployment_of("{a: {runtime: vllm, model: m, gpuz: 1}, b: {runtime: vllm, model: m, after: [a]}}"))
    assert len(told) == 1
    assert "gpuz" in told[0]


def test_a_faulty_engine_key_is_not_also_called_missing(faults: Faults) -> None:
    (told,) = faults(deployment_of("{a: {runtime: torch, engine: [x]}}"))
    assert "a list is not a text" in told


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("builder: torch", "builder 'torch' compiles a model folder; 'model' is missing"),
        ("builder: torch\nmodel: m\ncheckpoint: c", "'checkpoint' is for builder 'trtllm' only"),
        ("builder: torch\nmodel: m\ntp_size: 2", "builder 'torch' builds for one device"),
        ("builder: trtllm\nmodel: m", "there is none to take or make"),
        ("builder: trtllm\ncheckpoint: c\nconvert_script: s", "'convert_script' converts 'model', which is missing"),
        ("builder: torch\nmodel: m\nlimits: {max_input_len: 8, max_seq_len: 8}", "8 tokens do not fit"),
        ("builder: torch\nmodel: m\nlimits: {max_input_len: 9, max_seq_len: 8}", "max_input_len 9 is over max_seq_len"),
    ],
)
def test_recipes_say_what_their_builder_needs(recipe_faults: Faults, recipe: str, says: str) -> None:
    (told,) = recipe_faults(f"version: 1\nname: r\n{recipe}\n")
    assert says in told


@pytest.mark.parametrize("source", ["checkpoint: c", "model: m\nconvert_script: s"])
def test_a_trtllm_recipe_needs_a_checkpoint_or_a_way_to_one(write: Write, source: str) -> None:
    assert load.recipe(write(f"version: 1\nname: r\nbuilder: trtllm\n{source}\n")).model.builder == "trtllm"
