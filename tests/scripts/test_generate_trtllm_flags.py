from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_flags_by_release_in_the_documentation_are_current() -> None:
    argv = [sys.executable, "scripts/generate_trtllm_flags.py", "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--use_paged_context_fmha" in (ROOT / "docs" / "tensorrt-llm.md").read_text(encoding="utf-8")
