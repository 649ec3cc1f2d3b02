from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.build import trtllm_bench
from tests.build.trtllm_bench import TrtllmBench


@pytest.fixture
def bench(tmp_path: Path) -> TrtllmBench:
    made = trtllm_bench.make(tmp_path)
    made.recipe("checkpoint: ckpt\nfmha: disable\n")
    (tmp_path / "node.yaml").write_text(
        "version: 1\nname: node\nenvironments:\n  trtllm: {python: env/bin/python}\n"
        "engines:\n  tiny: {recipe: recipe.yaml, environment: trtllm}\n"
        "services:\n  llm: {runtime: command, argv: ['true'], ready: {path: /}}\n"
    )
    return made


def test_a_what_if_prints_the_commands_of_a_release_and_writes_nothing(coexist, bench: TrtllmBench) -> None:
    answer = coexist("build", bench.folder / "recipe.yaml", "--dry-run", "--trtllm-version", "0.12.0", "--json")
    assert answer.code == 0
    (engine,) = answer.document["engines"]
    argv = engine["commands"][0]["argv"]
    assert argv[argv.index("--context_fmha") + 1] == "disable"
    assert engine["fmha"] == {"asked": "disable", "built": None, "phase": "context", "proof": None}
    assert engine["guards"]
    assert any("nearest_dev" in note for note in engine["notes"])
    assert not (bench.folder / "home").exists()


@pytest.mark.parametrize(("version", "code"), [("1.3.0", "no_engine_mode"), ("0.7.1", "trtllm_version")])
def test_a_release_without_engines_is_exit_1_with_what_to_do(
    version: str, code: str, coexist, bench: TrtllmBench
) -> None:
    answer = coexist("build", bench.folder / "recipe.yaml", "--dry-run", "--trtllm-version", version, "--json")
    assert (answer.code, answer.error["code"]) == (1, code)
    assert answer.error["hint"]


def test_a_what_if_is_for_looking_only(coexist, bench: TrtllmBench) -> None:
    assert coexist("build", bench.folder / "recipe.yaml", "--trtllm-version", "1.2.0").code == 2


def test_a_what_if_needs_no_interpreter(coexist, bench: TrtllmBench) -> None:
    bench.python.unlink()
    arguments = ("build", bench.folder / "node.yaml", "--dry-run", "--trtllm-version", "1.2.0", "--json")
    (engine,) = coexist(*arguments).document["engines"]
    assert engine["commands"][0]["argv"][0] == "env/bin/trtllm-build"


def test_a_what_if_of_engines_without_tensorrt_llm_is_told(coexist, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "r.yaml").write_text("version: 1\nname: t\nbuilder: torch\nmodel: model\n")
    answer = coexist("build", tmp_path / "r.yaml", "--dry-run", "--trtllm-version", "1.2.0")
    assert answer.code == 1
    assert "Remove --trtllm-version" in answer.err


def test_a_deployment_builds_in_the_environment_it_names(coexist, bench: TrtllmBench) -> None:
    answer = coexist("build", bench.folder / "node.yaml", "--json")
    assert answer.code == 0, answer.err
    (engine,) = answer.document["engines"]
    assert (engine["fmha"]["built"], engine["reused"]) == ("disable", False)
    again = coexist("build", bench.folder / "node.yaml")
    assert again.out.startswith("reused ")


def test_a_failed_build_is_one_json_error(coexist, bench: TrtllmBench) -> None:
    bench.install("0.21.0", "fmha_left_on")
    answer = coexist("build", bench.folder / "node.yaml", "--json")
    assert (answer.code, answer.error["code"]) == (1, "refused_fmha")
    assert list((bench.folder / "home" / "engines").glob("[0-9a-f]*")) == []


def test_an_engine_is_adopted_after_it_was_judged(coexist, bench: TrtllmBench) -> None:
    built = coexist("build", bench.folder / "node.yaml", "--json").document["engines"][0]
    theirs = bench.folder / "theirs"
    theirs.mkdir()
    for path in Path(built["path"]).iterdir():
        if path.name not in ("manifest.json", ".use.lock"):
            (theirs / path.name).write_bytes(path.read_bytes())
    answer = coexist("engines", "adopt", theirs, "--env", bench.python, "--name", "given", "--json")
    assert answer.code == 0, answer.out
    assert answer.document["engine"]["name"] == "given"
    assert {row["id"] for row in answer.document["findings"]} == {"capability_unknown"}
    assert coexist("engines", "verify", "given").code == 0


def test_an_engine_of_another_release_is_refused_for_the_deployment(coexist, bench: TrtllmBench) -> None:
    bench.install("0.20.0")
    built = coexist("build", bench.folder / "node.yaml", "--json").document["engines"][0]
    bench.install("0.21.0")
    answer = coexist("engines", "adopt", built["path"], "--config", bench.folder / "node.yaml", "--json")
    assert answer.code == 1
    assert "release_differs" in {row["id"] for row in answer.error["findings"]}


def test_what_speaks_against_an_adopted_engine_is_a_note_of_the_plan(coexist, bench: TrtllmBench) -> None:
    built = coexist("build", bench.folder / "node.yaml", "--json").document["engines"][0]
    theirs = bench.folder / "theirs"
    theirs.mkdir()
    for name in ("config.json", "rank0.engine"):
        (theirs / name).write_bytes((Path(built["path"]) / name).read_bytes())
    (theirs / "rank1.engine").write_bytes(b"of another build")
    assert coexist("engines", "adopt", theirs, "--name", "given").code == 0
    file = bench.folder / "served.yaml"
    file.write_text(
        "version: 1\nname: served\nenvironments:\n  trtllm: {python: env/bin/python}\n"
        "engines:\n  tiny: {adopted: given, environment: trtllm}\n"
        "services:\n  llm: {runtime: trtllm, engine: tiny, environment: trtllm, options: {tokenizer: .},"
        " canary: {expected: x}}\n"
    )
    answer = coexist("plan", file, "--json")
    assert answer.code == 0, answer.out
    (service,) = answer.document["services"]
    assert any(note.startswith("engine 'tiny': there are engine files of more ranks (2)") for note in service["notes"])
    assert "note: llm: engine 'tiny': there are engine files of more ranks" in coexist("plan", file).out


@pytest.fixture
def unfused(bench: TrtllmBench) -> Path:
    """A deployment that serves an unfused engine of which nobody knows the right answers."""
    file = bench.folder / "unfused.yaml"
    file.write_text(
        (bench.folder / "node.yaml").read_text().partition("services:")[0]
        + ("services:\n  llm: {runtime: trtllm, engine: tiny, environment: trtllm, options: {tokenizer: .}}\n")
    )
    return file


@pytest.mark.parametrize("command", ["plan", "up"])
def test_an_engine_that_could_not_be_served_is_refused_before_it_is_built(command, coexist, unfused: Path) -> None:
    answer = coexist(command, unfused, "--json")
    assert (answer.code, answer.error["code"]) == (1, "no_reference")
    assert "services.llm.canary" in answer.error["where"]
    assert "building" not in answer.err


def test_the_check_and_a_dry_run_tell_of_it_too(coexist, unfused: Path) -> None:
    found = {finding["id"] for finding in coexist("check", unfused, "--json").document["findings"]}
    assert "unfused-answers" in found
    (engine,) = coexist("build", unfused, "--dry-run", "--json").document["engines"]
    assert any("its recipe names no 'model'" in note for note in engine["notes"])
    assert "warning: no right answers will be recorded with it" in coexist("build", unfused).err


@pytest.mark.parametrize("command", [("plan",), ("build", "--dry-run"), ("build",)])
def test_blocks_that_cannot_be_counted_are_refused_before_the_build(command, coexist, bench, unfused: Path) -> None:
    bench.recipe("checkpoint: ckpt\nkv_cache: {tokens_per_block: 48}\n")
    answer = coexist(command[0], unfused, *command[1:], "--json")
    assert (answer.code, answer.error["code"]) == (1, "tokens_per_block")
    assert "32 or 64" in json.dumps(answer.error)
    assert "kv-block-size" in {finding["id"] for finding in coexist("check", unfused, "--json").document["findings"]}
