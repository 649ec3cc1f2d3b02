"""A stand-in for the interpreter of an engine's environment: answers the steps of a build as a scenario says.

Started as ``SCRIPT run.py VERB --flags``; anything else goes to the real interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

FACTS: dict[str, Any] = {
    "python": "3.12.0",
    "packages": dict.fromkeys(("torch", "safetensors", "tokenizers", "numpy"), "1.0") | {"triton": None},
    "torch_cuda": None,
    "machine": "x86_64",
    "cpu_features": ["avx2"],
    "compute_capability": None,
}
INFO: dict[str, Any] = {
    "format": 1,
    "dtype": "float32",
    "canary": {"source": "a test", "tie_at": None, "tokens": [1]},
    "unfused_workspace_bytes": 4096,
}


def main(scenario: Path) -> int:
    verb = sys.argv[2]
    told = json.loads((scenario / "scenario.json").read_text())
    with (scenario / "calls").open("a") as calls:
        calls.write(json.dumps({"verb": verb, "argv": sys.argv[2:], "env": dict(os.environ)}) + "\n")
    if verb == "facts":
        print(json.dumps({**FACTS, **told.get("facts", {})}))
        return 0
    flags = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=False))
    descriptor = int(sys.argv[sys.argv.index("--progress-fd") + 1])
    os.write(descriptor, json.dumps({"step": verb, "state": "end", "seconds": 1.5}).encode() + b"\n")
    if verb in told.get("fail", {}):
        os.write(descriptor, json.dumps({"error": told["fail"][verb]}).encode() + b"\n")
        return 1
    if verb == told.get("hang"):
        (scenario / "hanging").touch()
        time.sleep(300)
    os.write(descriptor, json.dumps({"result": step(verb, flags, scenario)}).encode() + b"\n")
    return 0


def step(verb: str, flags: dict[str, str], scenario: Path) -> dict[str, Any]:
    folder = Path(flags["--engine-dir"])
    if verb == "prepare":
        (folder / "model.safetensors").write_bytes(b"weights")
        (folder / "engine.json").write_text(json.dumps(INFO))
        return INFO
    if verb == "compile":
        (folder / f"{flags['--phase']}.pt2").write_bytes((scenario / "package.pt2").read_bytes())
    return {"ok": True}
