"""``scripts/setup.sh`` with a Python that only records what it is asked to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"
TOOLS = ["bash", "cat", "chmod", "cp", "cut", "dirname", "env", "flock", "mkdir", "mv", "sha256sum", "touch"]
PYTHON = """\
#!/usr/bin/env bash
echo "$*" >>"$CALLS"
case "$*" in
  *version_info\\ *) exit "${TOO_OLD:-0}" ;;
  *ensurepip*) exit "${NO_VENV:-0}" ;;
  *%d*) echo 311 ;;
  --version) echo "Python 3.${MINOR:-11}.0" ;;
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; touch .venv/pyvenv.cfg ;;
  "-m pip install"*) touch .venv/bin/coexist; chmod +x .venv/bin/coexist; exit "${PIP_FAILS:-0}" ;;
esac
"""


class Checkout:
    """A folder with the script, and a PATH with little more than what it needs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.calls_file = folder / "repo", folder / "bin", folder / "calls"
        (self.folder / "scripts").mkdir(parents=True)
        (self.folder / "requirements").mkdir()
        self.bin.mkdir()
        shutil.copy(SETUP, self.folder / "scripts")
        self.write("pyproject.toml", "[project]\n")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        self.program("g++", "#!/usr/bin/env bash\n")
        self.program("python3", PYTHON)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def setup(self, what: str = "run", **env: str) -> subprocess.CompletedProcess[str]:
        self.calls_file.write_text("", encoding="utf-8")
        world = {"PATH": str(self.bin), "CALLS": str(self.calls_file), **env}
        argv = [str(self.folder / "scripts" / "setup.sh"), what]
        done = subprocess.run(argv, env=world, capture_output=True, text=True, check=False)
        assert done.stdout == ""
        return done

    def pip_calls(self) -> list[str]:
        calls = self.calls_file.read_text(encoding="utf-8").splitlines()
        return [call for call in calls if call.startswith("-m pip install")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_first_run_installs_and_the_second_does_nothing(checkout: Checkout) -> None:
    assert checkout.setup().returncode == 0
    (call,) = checkout.pip_calls()
    assert call.endswith("-e .[serve,models]")
    again = checkout.setup()
    assert (again.returncode, again.stderr) == (0, "")
    assert checkout.calls_file.read_text(encoding="utf-8") == ""


def test_what_the_tests_need_includes_what_running_needs(checkout: Checkout) -> None:
    checkout.setup("dev")
    assert checkout.pip_calls()[0].endswith("-e .[dev]")
    checkout.setup("run")
    assert checkout.pip_calls() == []


@pytest.mark.parametrize("file", ["pyproject.toml", "requirements/lock-py311.txt"])
def test_other_dependencies_are_installed_anew_into_the_same_environment(checkout: Checkout, file: str) -> None:
    checkout.setup()
    checkout.write(file, "# changed\n")
    assert checkout.setup().returncode == 0
    assert len(checkout.pip_calls()) == 1
    assert "-m venv" not in checkout.calls_file.read_text(encoding="utf-8")


def test_the_lock_of_the_interpreters_version_is_the_constraint(checkout: Checkout) -> None:
    checkout.write("requirements/lock-py310.txt", "")
    checkout.setup()
    assert "-c" not in checkout.pip_calls()[0].split()
    checkout.write("requirements/lock-py311.txt", "click==8.3\n")
    checkout.setup()
    assert "-c requirements/lock-py311.txt" in checkout.pip_calls()[0]


def test_a_failed_installation_does_not_look_done(checkout: Checkout) -> None:
    failed = checkout.setup(PIP_FAILS="1")
    assert failed.returncode == 1
    assert "error: pip could not install the dependencies" in failed.stderr
    checkout.setup()
    assert len(checkout.pip_calls()) == 1


def test_a_missing_compiler_is_said_before_anything_is_made(checkout: Checkout) -> None:
    (checkout.bin / "g++").unlink()
    done = checkout.setup()
    assert done.returncode == 1
    assert "error: no C++ compiler: 'g++' is not on PATH" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert not (checkout.folder / ".venv").exists()


def test_another_compiler_is_taken_from_cxx(checkout: Checkout) -> None:
    (checkout.bin / "g++").rename(checkout.bin / "clang++")
    assert checkout.setup(CXX="clang++").returncode == 0


def test_an_old_python_is_named_with_its_version(checkout: Checkout) -> None:
    done = checkout.setup(PYTHON="python3", TOO_OLD="1", MINOR="9")
    assert done.returncode == 1
    assert "error: PYTHON=python3 is not Python 3.10 or newer: Python 3.9.0" in done.stderr


def test_a_newer_python_beside_an_old_one_is_found(checkout: Checkout) -> None:
    checkout.program("python3", "#!/usr/bin/env bash\nexit 1\n")
    checkout.program("python3.12", PYTHON)
    assert checkout.setup().returncode == 0


def test_no_python_at_all_says_how_to_name_one(checkout: Checkout) -> None:
    (checkout.bin / "python3").unlink()
    done = checkout.setup()
    assert done.returncode == 1
    assert "error: Python 3.10 or newer was not found" in done.stderr
    assert "make PYTHON=" in done.stderr


def test_a_python_without_venv_says_what_to_install(checkout: Checkout) -> None:
    done = checkout.setup(NO_VENV="1")
    assert done.returncode == 1
    assert "python3 has no venv module" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
