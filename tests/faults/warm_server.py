"""``PORT``: the stand-in of a program that answers as ``STANDIN`` says. Standard library only."""

import importlib.util
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "standins" / "openai_server.py"
spec = importlib.util.spec_from_file_location("openai_server", FILE)
assert spec is not None
assert spec.loader is not None
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.serve("127.0.0.1", int(sys.argv[1]), "m", {"/health": "health", "/v1/completions": "completions"})
