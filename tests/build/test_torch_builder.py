from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.build.children import interrupted_once
from tests.build.conftest import Bench
from tests.build.packages import FUSED_CALL, UNFUSED_CALL
from toolkit.build.torch_builder import compile_together
from toolkit.errors import ToolkitError

STEPS = ["facts", "prepare", "compile", "compile", "verify"]


def engines(bench: Bench) -> list[str]:
    folder = bench.folder / "home" / "engines"
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else []


def staged(bench: Bench) -> list[Path]:
    folder = bench.folder / "home" / "engines" / ".staging"
    return list(folder.iterdir()) if folder.exists() else []


def test_a_build_runs_its_steps_in_order_and_is_published(bench: Bench) -> None:
    bench.scenario([FUSED_CALL])
    built = bench.ensure()
    assert bench.verbs() == STEPS
    assert engines(bench) == [built.path.name]
    assert not built.reused
    assert built.fmha["built"] == "enable"
    assert FUSED_CALL in built.fmha["proof"]
    assert built.info["canary"]["source"] == "a test"
    assert built.guards == []


def test_the_second_time_nothing_is_run_and_the_answer_is_the_same(bench: Bench) -> None:
    first = bench.ensure()
    second = bench.ensure()
    assert second.reused
    assert bench.verbs() == [*STEPS, "facts"]
    assert {**first.document(), "reused": True, "seconds": 0} == {**second.document(), "seconds": 0}


def test_an_engine_that_is_there_needs_no_compiler(
    bench: Bench, without_compiler: Callable[[], dict[str, str]]
) -> None:
    bench.ensure()
    assert bench.ensure(environ=without_compiler()).reused


def test_force_builds_again(bench: Bench) -> None:
    bench.ensure()
    assert not bench.ensure(force=True).reused


def test_without_a_compiler_nothing_slow_begins(bench: Bench, without_compiler: Callable[[], dict[str, str]]) -> None:
    with pytest.raises(ToolkitError, match=r"no C\+\+ compiler"):
        bench.ensure(environ=without_compiler())
    assert bench.verbs() == ["facts"]
    assert engines(bench) == staged(bench) == []


def test_fused_attention_that_came_back_is_refused_and_nothing_is_published(bench: Bench) -> None:
    bench.scenario([UNFUSED_CALL, FUSED_CALL])
    with pytest.raises(ToolkitError, match=f"put fused attention back.*{FUSED_CALL}") as caught:
        bench.ensure("fmha: disable\n")
    assert caught.value.code == "refused_fmha"
    assert any(FUSED_CALL in line for line in caught.value.details["evidence"])
    assert engines(bench) == staged(bench) == []
    assert "verify" not in bench.verbs()


def test_an_engine_without_fused_attention_says_how_that_was_proven_and_what_follows(bench: Bench) -> None:
    built = bench.ensure("fmha: disable\n")
    assert (built.fmha["asked"], built.fmha["built"], built.fmha["phase"]) == ("disable", "disable", "prefill+decode")
    assert "prefill.pt2: no fused attention" in built.fmha["proof"]
    assert "decode.pt2: no fused attention" in built.fmha["proof"]
    guards = {guard["id"]: guard["why"] for guard in built.guards}
    assert set(guards) == {"kv_cache_reuse_off", "chunked_prefill_off", "draft_tokens_off", "max_input_len_bounded"}
    assert "4.0 KiB" in guards["max_input_len_bounded"]


def test_fused_attention_asked_for_but_not_there_is_said(bench: Bench) -> None:
    built = bench.ensure()
    assert built.fmha["built"] == "disable"
    assert any("hold none" in note for note in built.notes)


@pytest.mark.parametrize("verb", ["prepare", "compile", "verify"])
def test_a_step_that_fails_publishes_nothing(verb: str, bench: Bench) -> None:
    bench.scenario(fail={verb: {"what": "it is wrong", "where": "here", "hint": "fix", "code": "x", "details": {}}})
    with pytest.raises(ToolkitError, match="it is wrong"):
        bench.ensure()
    assert engines(bench) == staged(bench) == []


def test_ctrl_c_in_a_build_leaves_nothing(bench: Bench) -> None:
    bench.scenario(hang="compile")
    with interrupted_once(bench.folder / "hanging"):
        bench.ensure()
    assert engines(bench) == staged(bench) == []


def test_steps_get_an_environment_of_their_own(bench: Bench) -> None:
    bench.ensure()
    for call in bench.calls():
        assert "SECRET" not in call["env"]
        assert call["env"]["HF_HUB_OFFLINE"] == "1"
    compile_env = next(call["env"] for call in bench.calls() if call["verb"] == "compile")
    assert compile_env["CXX"].endswith("g++")
    assert compile_env["TORCHINDUCTOR_CACHE_DIR"].startswith(str(bench.folder / "home"))


def test_threads_of_phases_that_compile_at_once_fit_the_cores(bench: Bench) -> None:
    bench.ensure()
    threads = [int(call["env"]["OMP_NUM_THREADS"]) for call in bench.calls() if call["verb"] == "compile"]
    cores = len(os.sched_getaffinity(0))
    assert threads == ([cores // 2] * 2 if compile_together(bench.folder / "model") else [cores] * 2)


def test_recorded_commands_are_the_ones_that_ran(bench: Bench) -> None:
    commands = {command.argv[2:]: command.env for command in bench.ensure().commands}
    ran = [call for call in bench.calls() if call["verb"] != "facts"]
    assert len(ran) == len(commands)
    for call in ran:
        env = commands[tuple(call["argv"][: call["argv"].index("--progress-fd")])]
        assert {name: call["env"].get(name) for name in env} == dict(env)


def test_a_step_says_how_long_it_took_last_time(bench: Bench) -> None:
    lines: list[str] = []
    bench.ensure(report=lines.append)
    assert "prepare: 1.5 s" in lines
    history = json.loads((bench.folder / "home" / "logs" / "tiny.steps.json").read_text())
    assert history["prepare"] == 1.5


def test_texts_of_the_canary_reach_the_step_even_when_they_look_like_flags(bench: Bench) -> None:
    bench.ensure("canary: {prompt: '--x y', expected: '-z'}\n")
    prepare = next(call["argv"] for call in bench.calls() if call["verb"] == "prepare")
    assert "--canary-prompt=--x y" in prepare
    assert "--canary-expected=-z" in prepare


def test_a_dry_run_shows_the_commands_and_writes_nothing(bench: Bench) -> None:
    dry = bench.describe("fmha: disable\n")
    assert not (bench.folder / "home").exists()
    assert bench.verbs() == ["facts"]
    assert [command.argv[2] for command in dry.commands] == STEPS[1:]
    assert dry.fmha == {"asked": "disable", "built": None, "phase": "prefill+decode", "proof": None}
    assert len(dry.guards) == 4


def test_a_dry_run_shows_what_a_build_then_runs(bench: Bench) -> None:
    dry, built = bench.describe(), bench.ensure()
    assert dry.fingerprint == built.fingerprint
    assert dry.path == built.path
    flags = [word for word in dry.commands[0].argv if word.startswith("--")]
    assert flags == [word for word in built.commands[0].argv if word.startswith("--")]


def test_a_dry_run_knows_an_engine_that_is_there(bench: Bench) -> None:
    bench.ensure()
    assert bench.describe().reused


def test_the_document_has_the_promised_keys(bench: Bench) -> None:
    document = bench.ensure().document()
    assert list(document) == [
        "name", "builder", "fingerprint", "path", "reused", "seconds", "commands", "fmha", "guards", "notes",
    ]  # fmt: skip
    assert set(document["commands"][0]) == {"argv", "env"}
    assert json.loads(json.dumps(document)) == document
