"""The main job on real input: a deployment file in, two warm services out. Real models, a real compile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import yaml

from tests.ports import free_ports
from toolkit import affinity, processes
from toolkit.units import parse_cpu_list

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[1]
COEXIST = Path(sys.executable).with_name("coexist")


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The quickstart's deployment on free ports, with a home of its own."""
    folder = tmp_path_factory.mktemp("quickstart")
    document = yaml.safe_load((ROOT / "configs/quickstart.yaml").read_text())
    document["engines"]["smollm2"]["recipe"] = str(ROOT / "engines/smollm2-135m.yaml")
    document["services"]["embed"]["model"] = str(ROOT / "models/all-minilm-l6-v2")
    document["name"] = f"main-job-{os.getpid()}"
    for service, port in zip(document["services"].values(), free_ports(2), strict=True):
        service["port"] = port
    config = folder / "deploy.yaml"
    config.write_text(yaml.safe_dump(document))
    return config


@pytest.fixture(scope="module")
def environ(quickstart):
    run = quickstart.parent / "run"
    run.mkdir(mode=0o700)
    return {**os.environ, "COEXIST_HOME": str(quickstart.parent / "home"), "COEXIST_RUNTIME_DIR": str(run)}


@pytest.fixture(scope="module")
def coexist(environ):
    def run(*argv: object) -> dict:
        command = [COEXIST, *map(str, argv), "--json"]
        done = subprocess.run(command, env=environ, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def engine(coexist, quickstart):
    (built,) = coexist("build", quickstart)["engines"]
    return built


def ask(port: int, path: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:{port}{path}", data, headers), timeout=60) as answer:
        return json.load(answer)


def test_an_engine_is_built_once_and_then_reused(engine, coexist, quickstart):
    assert engine["reused"] is False
    assert engine["fmha"]["built"] == "enable"
    (again,) = coexist("build", quickstart)["engines"]
    assert again["reused"] is True
    assert again["path"] == engine["path"]
    assert coexist("engines", "verify")["engines"][0]["faults"] == []


def test_three_boots_are_right_and_compile_nothing(engine, coexist, quickstart):
    for _ in range(3):
        status = coexist("up", quickstart, "--exit-when-ready")
        assert status["ready"] is True
        for service in status["services"]:
            assert [stage["state"] for stage in service["stages"]] == ["INIT", "PRELOAD", "PRIME", "SERVING"]
            assert service["canary"]["ok"] is True
            assert service["first_token_ms"]["first"] > 0
            assert service["late_compiles"] == 0
            assert service["placement"]["on_plan_percent"] == 100
            assert service["placement"]["drift"] == []
    home = Path(engine["path"]).parents[1]
    assert list(home.glob("cache/*/*/inductor/**/*.so")) == []


def test_both_services_answer_real_requests_until_ctrl_c_stops_everything(engine, coexist, quickstart, environ):
    ports = {name: s["port"] for name, s in yaml.safe_load(quickstart.read_text())["services"].items()}
    command = [COEXIST, "up", quickstart, "--json"]
    with subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as up:
        try:
            status = json.loads(up.stdout.readline())
            pids = {service["name"]: service["pid"] for service in status["services"]}
            check_answers(ports)
            for service in status["services"]:
                tree = processes.tree([service["pid"]])
                assert affinity.verify(tree, parse_cpu_list(service["cpus"])).on_plan_percent == 100
            assert coexist("status", "--deployment", status["deployment"])["ready"] is True
        finally:
            up.send_signal(signal.SIGINT)
        assert up.wait(60) == 130
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    for port in ports.values():
        socket.create_server(("127.0.0.1", port)).close()


def check_answers(ports: dict[str, int]) -> None:
    asked = {"model": "smollm2-135m", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    assert ask(ports["llm"], "/v1/completions", asked)["choices"][0]["text"].startswith(" Paris")
    both = ask(ports["embed"], "/v1/embeddings", {"model": "all-minilm-l6-v2", "input": ["a cat", "a kitten"]})
    cat, kitten = (row["embedding"] for row in both["data"])
    assert sum(a * b for a, b in zip(cat, kitten, strict=True)) > 0.6
    for port in ports.values():
        assert ask(port, "/v1/stage")["stage"] == "serving"


def test_a_flipped_byte_in_an_engine_is_found(engine, coexist, quickstart, environ):
    package = Path(engine["path"]) / "decode.pt2"
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    stamp = package.stat().st_mtime_ns
    with package.open("r+b") as file:
        file.write(content)
    os.utime(package, ns=(stamp, stamp))
    verify = [COEXIST, "engines", "verify", "--json"]
    done = subprocess.run(verify, env=environ, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "decode.pt2" in json.loads(done.stdout)["error"]["what"]
