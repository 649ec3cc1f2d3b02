from __future__ import annotations

import json

from tests.plan.machines import deployment, gpu, host, shared
from toolkit.plan import make
from toolkit.plan.document import document

SERVICE_KEYS = [
    "name", "runtime", "gpus", "cpus", "numa_nodes", "memory_bind", "port", "wave", "after", "argv", "env", "kv",
    "notes",
]  # fmt: skip


def test_every_key_is_there_and_the_whole_is_json():
    plan = make(deployment(a=shared("3GiB"), b={"gpus": 1}), host(gpu(0), gpu(1, used_bytes=1)))
    found = json.loads(json.dumps(document(plan, {"a": (["serve"], {"HOME": "/"})})))
    assert list(found) == ["schema", "deployment", "services", "ledger", "notes"]
    assert all(list(service) == SERVICE_KEYS for service in found["services"])
    by_name = {service["name"]: service for service in found["services"]}
    assert (by_name["a"]["argv"], by_name["a"]["env"], by_name["b"]["argv"]) == (["serve"], {"HOME": "/"}, [])
    assert {s["name"]: s["gpus"][0]["budget_mib"] for s in found["services"]} == {"a": 3072, "b": None}
    assert all(
        line["total_mib"] == sum(r["mib"] for r in line["reserved"]) + line["free_mib"] for line in found["ledger"]
    )


def test_values_of_secret_variables_and_options_are_masked():
    plan = make(deployment(a={}), host())
    argv = ["serve", "--api-key", "abc", "--hf-token=abc", "--max-tokens", "5"]
    service = document(plan, {"a": (argv, {"HF_TOKEN": "abc", "N": "1"})})["services"][0]
    assert service["env"] == {"HF_TOKEN": "***", "N": "1"}
    assert service["argv"] == ["serve", "--api-key", "***", "--hf-token=***", "--max-tokens", "5"]
