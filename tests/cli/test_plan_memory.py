"""Memory of built-in servers as ``coexist plan --host`` derives it from a model folder, on recorded machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from toolkit.host import record
from toolkit.units import GIB, MIB

RECORDS = Path(__file__).resolve().parents[1] / "host" / "records"
WITH_GPUS = ["dgx_h100", "two_gpus_two_nodes", "vm_one_h200", "a100_mig", "gb200"]
DECODER = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 2048, "intermediate_size": 8192, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "float32",
}  # fmt: skip
ENCODER = {
    "architectures": ["BertModel"], "num_hidden_layers": 6, "num_attention_heads": 12, "hidden_size": 384,
    "intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512, "torch_dtype": "float32",
}  # fmt: skip
WEIGHTS = 5 * GIB
# Of the recipe below in bfloat16: keys and values, 16 layers, 8 heads of 64, 2 bytes.
BYTES_A_TOKEN = 2 * 16 * 8 * 64 * 2
LENGTH, BATCH = 4096, 8


def model(folder: Path, config: dict, weights_bytes: int) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(weights_bytes)  # sparse: only its size is read
    return str(folder)


@pytest.fixture
def deployment(tmp_path):
    """An engine and an encoder that share a GPU; arguments change the engine's service."""
    recipe = {
        "version": 1, "name": "tiny-llama", "builder": "torch", "dtype": "bfloat16",
        "model": model(tmp_path / "decoder", DECODER, WEIGHTS),
        "limits": {"max_batch_size": BATCH, "max_input_len": 2048, "max_seq_len": LENGTH, "max_num_tokens": 8192},
        "kv_cache": {"tokens_per_block": 32},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    encoder = model(tmp_path / "encoder", ENCODER, 90 * MIB)

    def write(**llm) -> Path:
        shared = {"count": 1, "share": True}
        services = {
            "llm": {"runtime": "torch", "engine": "llm", "gpus": shared, **llm},
            "embed": {"runtime": "flash", "model": encoder, "gpus": shared},
        }
        file = tmp_path / "deploy.yaml"
        engines = {"llm": {"recipe": "recipe.yaml"}}
        file.write_text(yaml.safe_dump({"version": 1, "name": "demo", "engines": engines, "services": services}))
        return file

    return write


def services(answer) -> dict:
    return {service["name"]: service for service in answer.document["services"]}


@pytest.mark.parametrize("name", WITH_GPUS)
def test_budgets_come_from_the_models_on_every_recorded_machine(coexist, deployment, name):
    answer = coexist("plan", deployment(), "--host", RECORDS / f"{name}.json", "--json")
    assert answer.code == 0
    llm, embed = services(answer)["llm"], services(answer)["embed"]
    weights_mib = WEIGHTS // MIB // 2  # stored in float32, runs in bfloat16
    kv_mib = BYTES_A_TOKEN * LENGTH * BATCH // MIB
    assert weights_mib + kv_mib < llm["gpus"][0]["budget_mib"] < weights_mib + kv_mib + 1024
    assert 90 < embed["gpus"][0]["budget_mib"] < 2048
    assert llm["argv"][llm["argv"].index("--memory-bytes") + 1] == str(llm["gpus"][0]["budget_mib"] * MIB)
    for line in answer.document["ledger"]:
        assert line["total_mib"] == line["free_mib"] + sum(entry["mib"] for entry in line["reserved"])
        assert line["free_mib"] >= 0


def test_the_kv_cache_is_told_to_people_and_programs(coexist, deployment):
    host = RECORDS / "vm_one_h200.json"
    planned = services(coexist("plan", deployment(), "--host", host, "--json"))
    assert planned["llm"]["kv"] == {
        "bytes_per_token": BYTES_A_TOKEN, "tokens_per_block": 32, "blocks": LENGTH * BATCH // 32,
        "max_seq_len": LENGTH, "full_length_requests": BATCH,
    }  # fmt: skip
    assert planned["embed"]["kv"] is None, "an encoder keeps nothing between requests"
    told = " ".join(coexist("plan", deployment(), "--host", host).out.split())
    assert f"{BYTES_A_TOKEN} bytes a token, 1024 blocks of 32 tokens; 8 requests of 4096 tokens fit" in told


def test_a_written_budget_bounds_the_kv_cache(coexist, deployment):
    planned = services(coexist("plan", deployment(gpu_memory="4GiB"), "--host", RECORDS / "gb200.json", "--json"))
    assert planned["llm"]["gpus"][0]["budget_mib"] == 4096
    assert 0 < planned["llm"]["kv"]["full_length_requests"] <= BATCH


def test_too_little_for_one_request_is_refused_with_its_parts(coexist, deployment):
    answer = coexist("plan", deployment(gpu_memory="2600MiB"), "--host", RECORDS / "gb200.json", "--json")
    assert (answer.code, answer.error["resource"]) == (1, "gpu_memory")
    assert "too little for one request of full length" in answer.error["what"]
    assert answer.error["needed"] > answer.error["available"] == 2600


def test_a_refusal_says_who_holds_what_and_how_much_is_missing(coexist, deployment, tmp_path):
    found = json.loads((RECORDS / "two_gpus_two_nodes.json").read_text())
    found["gpus"], found["links"] = found["gpus"][:1], []
    host = tmp_path / "host.json"
    host.write_text(json.dumps(found))
    total = record.load(host).gpus[0].memory_bytes // MIB
    answer = coexist("plan", deployment(gpu_memory=f"{total - 1000}MiB"), "--host", host, "--json")
    error = answer.error
    assert (answer.code, error["resource"], sorted(error["services"])) == (1, "gpu_memory", ["embed", "llm"])
    for part in ("is missing on GPU 0", "Xorg (pid 2301) holds 450.0 MiB", "llm needs", "embed needs"):
        assert part in error["what"]
    assert error["needed"] - error["available"] > 0


def test_an_unreadable_model_leaves_the_need_unknown_and_says_so(coexist, deployment, tmp_path):
    (tmp_path / "decoder/config.json").write_text("{")
    answer = coexist("plan", deployment(), "--host", RECORDS / "dgx_h100.json", "--json")
    llm = services(answer)["llm"]
    assert (llm["gpus"][0]["budget_mib"], llm["kv"]) == (None, None)
    assert any("memory need unknown" in note for note in llm["notes"])
