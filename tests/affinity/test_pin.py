from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.affinity import pin
from toolkit.affinity.policy import PIN_FILE
from toolkit.runtimes import environment
from toolkit.units import format_cpu_list, parse_cpu_list

ALLOWED = sorted(os.sched_getaffinity(0))
CPU = ALLOWED[-1]
FORBIDDEN = next(cpu for cpu in range(4096) if cpu not in ALLOWED)
NODE = parse_cpu_list(
    next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "Mems_allowed_list" in line)
)[0]
DENY = Path(__file__).with_name("data") / "deny_mempolicy.py"


def run(*arguments: str, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()) -> tuple[int, str, str]:
    argv = [*prefix, sys.executable, "-I", "-S", str(PIN_FILE), *arguments]
    environ = {"PATH": os.environ["PATH"]} if env is None else env
    result = subprocess.run(argv, capture_output=True, text=True, check=False, env=environ, timeout=60)
    return result.returncode, result.stdout, result.stderr


def test_the_program_runs_on_exactly_these_cpus() -> None:
    code, out, _ = run("--cpus", str(CPU), "--", "grep", "Cpus_allowed_list", "/proc/self/status")
    assert code == 0
    assert out.split()[1] == str(CPU)


@pytest.mark.parametrize(("kind", "shown"), [("bind", f"bind:{NODE}"), ("preferred", f"prefer:{NODE}")])
def test_the_program_has_the_memory_policy(kind: str, shown: str) -> None:
    code, out, _ = run("--mem", f"{kind}:{NODE}", "--", "cat", "/proc/self/numa_maps")
    assert code == 0
    assert {line.split()[1] for line in out.splitlines()} <= {shown, "default"}
    assert shown in out


def test_none_leaves_the_policy_as_it_was() -> None:
    _, out, _ = run("--mem", "none", "--", "cat", "/proc/self/numa_maps")
    assert "bind" not in out
    assert "prefer" not in out


def test_the_pid_is_kept() -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(PIN_FILE), "--cpus", str(CPU), "--", "sh", "-c", "echo $$"],
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate(timeout=60)
    assert int(out) == process.pid


def test_the_environment_is_passed_on_unchanged_even_when_empty() -> None:
    for env in ({}, {"LANG": "C", "X": "a=b\nc"}):
        _, out, _ = run("--", "/usr/bin/env", "-0", env=env)
        assert dict(entry.split("=", 1) for entry in out.split("\0") if entry) == env


def test_arguments_are_passed_on_as_bytes() -> None:
    argv = [sys.executable.encode(), b"-I", b"-S", os.fsencode(PIN_FILE), b"--", b"printf", b"%s", b"--\xff $x"]
    assert subprocess.check_output(argv, env={"PATH": os.environ["PATH"]}) == b"--\xff $x"


def test_signals_that_python_ignores_are_not_ignored_in_the_program() -> None:
    _, out, _ = run("--", "grep", "SigIgn", "/proc/self/status")
    ignored = int(out.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--cpus", f"{CPU},{FORBIDDEN}", "--", "true"), f"CPUs {FORBIDDEN} are not allowed here"),
        (("--cpus", str(FORBIDDEN), "--", "true"), f"none of the CPUs {FORBIDDEN} is allowed"),
        (("--cpus", "3-1", "--", "true"), "'3-1' is not a list"),
        (("--cpus", "", "--", "true"), "is not a list"),
        (("--cpus", "9" * 20, "--", "true"), "is not a list"),
        (("--mem", "bind:1000", "--", "true"), "set_mempolicy for NUMA nodes 1000: Invalid argument"),
        (("--mem", f"bind:{NODE},1000", "--", "true"), "1000"),
        (("--mem", "bind:1024", "--", "true"), "no more than 1024"),
        (("--mem", "bind", "--", "true"), "is not a list"),
        (("--mem", "local:0", "--", "true"), "not 'local:0'"),
        (("--cpus", "0"), "usage"),
        ((), "usage"),
        (("--",), "usage"),
        (("true",), "usage"),
    ],
)
def test_what_cannot_be_pinned_is_told_with_its_own_code(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = run(*arguments)
    assert code == 125
    assert out == ""
    assert err.startswith("coexist pin: cannot pin: ")
    assert says in err
    assert err.count("\n") == 1


def test_a_program_that_is_not_there_is_127_and_one_that_cannot_run_126(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    assert run("--", "no-such-program")[0] == 127
    assert run("--", str(plain))[0] == 126
    plain.chmod(0o755)
    assert run("--", str(plain))[0] == 126  # no format the kernel knows
    plain.write_text("#!/no/such/interpreter\n")
    code, _, err = run("--", str(plain))
    assert code == 127
    assert "the interpreter it names" in err


def test_check_pins_and_starts_nothing() -> None:
    assert run("--cpus", str(CPU), "--mem", f"bind:{NODE}", "--check") == (0, "", "")


def test_a_refused_call_is_told() -> None:
    code, _, err = run("--mem", f"bind:{NODE}", "--", "true", prefix=(sys.executable, str(DENY)))
    if "no seccomp here" in err:
        pytest.skip(err)
    assert code == 125
    assert "Operation not permitted" in err


def test_several_nodes_can_be_preferred() -> None:
    assert run("--mem", f"preferred:{NODE},{NODE + 1}", "--", "true")[0] == 0


def test_an_old_kernel_prefers_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, list[int]]] = []

    def old_kernel(mode: int, nodes: list[int]) -> None:
        calls.append((mode, nodes))
        if mode == pin.MPOL_PREFERRED_MANY:
            raise pin.PinError("no", 22)

    monkeypatch.setattr(pin, "_set_policy", old_kernel)
    pin.set_memory_policy("preferred", [2, 3])
    assert calls == [(pin.MPOL_PREFERRED_MANY, [2, 3]), (pin.MPOL_PREFERRED, [2])]


def test_an_unknown_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin, "_SYSCALLS", {})
    with pytest.raises(pin.PinError, match="not known"):
        pin.set_memory_policy("bind", [0])


@given(st.sets(st.integers(0, 70), min_size=1))
def test_lists_are_those_of_the_kernel(found: set[int]) -> None:
    assert pin.as_list(found) == format_cpu_list(found)
    assert pin.numbers(pin.as_list(found)) == sorted(found)


@given(st.text(alphabet="0123456789-,: ", max_size=12))
def test_a_list_is_understood_as_elsewhere_or_refused(text: str) -> None:
    try:
        found = pin.numbers(text)
    except ValueError:
        return
    assert tuple(found) == parse_cpu_list(text)


def test_the_wrapper_needs_only_the_standard_library_of_an_old_python() -> None:
    tree = ast.parse(PIN_FILE.read_text(), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported <= {"__future__", "collections", "ctypes", "errno", "os", "signal", "sys", "typing"}


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_a_rank_runs_on_its_own_cpus(variable: str) -> None:
    lists = f"{ALLOWED[0]}/{CPU}"
    argv = ("--ranks", lists, "--", "grep", "Cpus_allowed_list", "/proc/self/status")
    for rank, cpu in enumerate((ALLOWED[0], CPU)):
        code, out, _ = run(*argv, env={"PATH": os.environ["PATH"], variable: str(rank)})
        assert (code, out.split()[1]) == (0, str(cpu))


def test_a_rank_that_nobody_numbers_or_that_has_no_cpus_does_not_start() -> None:
    code, _, err = run("--ranks", str(CPU), "--", "true", env={"PATH": os.environ["PATH"]})
    assert code == pin.CANNOT_PIN
    assert "which rank" in err
    code, _, err = run("--ranks", str(CPU), "--", "true", env={"PATH": os.environ["PATH"], "PMI_RANK": "1"})
    assert code == pin.CANNOT_PIN
    assert "CPUs for 1 ranks" in err


def test_each_rank_has_cache_folders_of_its_own() -> None:
    lists = f"{ALLOWED[0]}/{CPU}"
    env = {"PATH": os.environ["PATH"], "PMI_RANK": "1", "TRITON_CACHE_DIR": "/c/triton", "HOME": "/home/x"}
    code, out, _ = run("--ranks", lists, "--", "env", env=env)
    assert code == 0
    assert {"TRITON_CACHE_DIR=/c/triton/rank-1", "HOME=/home/x"} <= set(out.split())
    code, out, _ = run("--cpus", str(CPU), "--", "env", env=env)
    assert "TRITON_CACHE_DIR=/c/triton" in out.split()


def test_the_caches_of_ranks_are_those_that_every_service_has() -> None:
    assert set(pin.CACHES) == set(environment.CACHE_FOLDERS)
