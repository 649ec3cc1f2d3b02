from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[2] / "toolkit" / "serve" / "run.py"


def run(*argv: str, script: Path = RUN, isolated: bool = False) -> subprocess.CompletedProcess[str]:
    flags = ["-I", "-S"] if isolated else []
    return subprocess.run([sys.executable, *flags, str(script), *argv], capture_output=True, text=True, check=False)


def test_an_unknown_verb_is_wrong_usage() -> None:
    done = run("bake")
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_facts_need_only_the_standard_library_and_no_installed_coexist() -> None:
    done = run("facts", isolated=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packages"]["torch"] is None


def test_the_package_beside_the_script_is_the_one_that_runs(tmp_path: Path) -> None:
    copy = tmp_path / "toolkit"
    shutil.copytree(RUN.parents[1], copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "serve" / "facts.py").write_text("def main(argv):\n    print(__file__)\n    return 7\n")
    done = run("facts", script=copy / "serve" / "run.py")
    assert done.returncode == 7
    assert done.stdout.strip() == str(copy / "serve" / "facts.py")


def test_our_file_names_shadow_no_module_of_others() -> None:
    code = (
        f"import runpy, sys; sys.argv = ['run.py', 'facts']; sys.path.insert(0, {str(RUN.parent)!r})\n"
        f"try: runpy.run_path({str(RUN)!r}, run_name='__main__')\n"
        "except SystemExit: pass\n"
        "import tokenizers, compileall\n"
        "try: import frontend\n"
        "except ImportError: print('clean')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "clean", done.stderr
