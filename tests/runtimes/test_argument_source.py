from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standins import environments
from toolkit.facts.options import Option
from toolkit.runtimes import argument_source, sglang, transformers, vllm

READERS = {"vllm": (vllm.FILES, vllm.options_of), "sglang": (sglang.FILES, sglang.options_of)}
# Prints what a real parser made of the same files: names, choices, whether a value is taken, and several.
ASK = """
import argparse, importlib, json, sys, types
sys.modules["standin_server"] = types.ModuleType("standin_server")
module, function = sys.argv[1].split(":")
parser = argparse.ArgumentParser(add_help=False)
add = getattr(importlib.import_module(module), function.split(".")[0])
add = getattr(add, function.split(".")[1]) if "." in function else add
add(parser)
print(json.dumps([[a.option_strings, a.choices and list(map(str, a.choices)), a.nargs] for a in parser._actions]))
"""
ADDERS = {
    ("vllm", "0.6.9"): "vllm.entrypoints.openai.cli_args:make_arg_parser",
    ("vllm", "0.10.9"): "vllm.entrypoints.openai.cli_args:make_arg_parser",
    ("vllm", "0.33.9"): "vllm.entrypoints.common.cli_args:make_arg_parser",
    ("sglang", "0.4.9"): "sglang.srt.server_args:ServerArgs.add_cli_args",
    ("sglang", "0.5.29"): "sglang.srt.server_args:ServerArgs.add_cli_args",
}


def folder(name: str, release: str) -> Path:
    return environments.HERE / "packages" / f"{name}-{release}" / name


def read(name: str, release: str) -> dict[str, Option]:
    files, options_of = READERS[name]
    return {option.name: option for option in options_of(argument_source.source(folder(name, release), files))}


def parsed(name: str, release: str) -> list[tuple[list[str], list[str] | None, object]]:
    command = [sys.executable, "-B", "-c", ASK, ADDERS[name, release]]
    done = subprocess.run(command, cwd=folder(name, release).parent, capture_output=True, text=True, check=True)
    return [tuple(row) for row in json.loads(done.stdout)]


@pytest.mark.parametrize(("name", "release"), environments.RELEASES)
def test_what_is_read_from_the_files_is_what_their_parser_has(name: str, release: str):
    options = read(name, release)
    seen = set()
    for names, choices, nargs in parsed(name, release):
        option = next((each for each in options.values() if set(names) & {each.name, *each.aliases}), None)
        assert option is not None, names
        seen.add(option.name)
        negations = {option.negation} - {None}
        assert set(names) == {option.name, *option.aliases} | negations
        assert option.choices is None or option.open_choices or list(option.choices) == choices
        assert choices is None or option.choices is not None
        assert option.many == (nargs in ("+", "*"))
        assert (option.kind == "flag") == (nargs == 0)
    assert seen == set(options)


def test_the_forms_of_one_option_in_three_releases():
    caching = [read("vllm", release)["--enable-prefix-caching"] for release in ("0.6.9", "0.10.9", "0.33.9")]
    assert [each.kind for each in caching] == ["flag"] * 3
    assert [each.negation for each in caching] == [None, *["--no-enable-prefix-caching"] * 2]
    assert read("vllm", "0.10.9")["--max-model-len"].kind == "int"
    assert read("vllm", "0.10.9")["--gpu-memory-utilization"].kind == "float"
    assert read("vllm", "0.10.9")["--hf-overrides"].kind == "json"
    executor = read("vllm", "0.33.9")["--distributed-executor-backend"]
    assert (executor.choices, executor.open_choices) == (("ray", "mp", "uni"), True)


def test_what_is_not_for_the_command_line_is_no_option():
    assert {"--secret", "--plain"}.isdisjoint(read("sglang", "0.5.29"))
    assert "--internal" not in read("vllm", "0.10.9")


def test_the_installed_transformers_is_read():
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    found = argument_source.source(Path(spec.origin).parent, transformers.FILES)
    options = {option.name: option for option in transformers.options_of(found)}
    assert {"--host", "--port", "--device", "--dtype", "--attn-implementation"} <= set(options)
    batching = options["--continuous-batching"]
    assert (batching.kind, batching.negation) == ("flag", "--no-continuous-batching")
    assert options["--port"].kind == "int"


def test_a_file_that_is_no_python_is_left_out(tmp_path: Path):
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0")
    (tmp_path / "good.py").write_text('parser.add_argument("--x", type=int)')
    found = argument_source.source(tmp_path, ("*.py", "missing/*.py"))
    assert [option.name for option in argument_source.of_calls(found)] == ["--x"]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('"--x"', Option("--x", None)),
        ('"-x", "--xx", type=int, default=3', Option("--xx", "int", default=3, aliases=("-x",))),
        ('"--x", type=make()', Option("--x", None)),
        ('"--x", choices=WORDS', Option("--x", None, ("a", "b"))),
        ('"--x", choices=list(WORDS)', Option("--x", None, ("a", "b"))),
        ('"--x", choices=[f.value for f in Kind]', Option("--x", None, None, open_choices=True)),
        ('"--x", action="store_true"', Option("--x", "flag")),
        ('"--x", action=argparse.BooleanOptionalAction', Option("--x", "flag", negation="--no-x")),
        ('"--x", nargs="+", type=str', Option("--x", "str", many=True)),
        ('"--x", **unknown["x"]', Option("--x", None)),
    ],
)
def test_a_call_is_read_as_it_is_written(tmp_path: Path, call: str, expected: Option):
    (tmp_path / "a.py").write_text(f'WORDS = ["a", "b"]\nparser.add_argument({call})\n')
    (found,) = argument_source.of_calls(argument_source.source(tmp_path, ("a.py",)))
    assert found == expected


def test_nothing_is_imported(tmp_path: Path):
    (tmp_path / "a.py").write_text('raise SystemExit("imported")\nparser.add_argument("--x")\n')
    assert [o.name for o in argument_source.of_calls(argument_source.source(tmp_path, ("a.py",)))] == ["--x"]
