#!/usr/bin/env python3
"""Proves on one or two NVIDIA GPUs what coexist promises of them, prints a table, writes JSON.

    python scripts/gpu_proof.py --json proof.json
    python scripts/gpu_proof.py --boots 20 --work /tmp/proof

It makes its own models (random weights), builds an engine, boots it beside an embedding server on one GPU with
budgets, and with two GPUs on one each; then measures the start, the attention, the load of each beside the other, and
looks into the kernels of an engine without fused attention. Without a GPU it runs the same in small, to test itself.
Interrupted, the next call with the same --work goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import aiohttp

ROOT = Path(__file__).resolve().parents[1]
COEXIST = [sys.executable, "-m", "toolkit.cli"]
LOAD_S = 3.0
LLM, EMBED = "llm", "embed"


@dataclass(frozen=True)
class Row:
    """One line of the table; ``ok`` None: nothing was wanted of it."""

    what: str
    measured: str
    wanted: str = ""
    ok: bool | None = None


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def started(argv: Sequence[object], stderr: IO[str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """The process of a command; it ends with the block, in its own way."""
    words = [str(word) for word in argv]
    process = subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=stderr)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def run(argv: Sequence[object], check: bool = True) -> str:
    """Standard output of one command; its errors are shown."""
    with started(argv) as process:
        out, _ = process.communicate()
    if check and process.returncode:
        sys.exit(f"gpu_proof: {' '.join(map(str, argv))} ended with {process.returncode}: {out[-2000:]}")
    return out


class Proof:
    """The work folder, what was asked, and the rows so far."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.work = asked, asked.work
        self.gpus = json.loads(run([*COEXIST, "host", "--json"]))["gpus"]
        kept = json.loads(self.kept.read_text()) if self.kept.exists() else {"rows": [], "details": {}, "done": []}
        self.rows = [Row(**row) for row in kept["rows"]]
        self.details: dict[str, Any] = kept["details"]
        self.done: list[str] = kept["done"]

    @property
    def kept(self) -> Path:
        """What is there so far, should this be interrupted."""
        return self.work / "proof.json"

    def keep(self, step: str) -> None:
        """From now on this step is not run again."""
        self.done.append(step)
        text = json.dumps(self.document(), indent=1) + "\n"
        for target in filter(None, (self.kept, self.asked.json)):
            part = target.with_name(target.name + ".part")
            part.write_text(text)
            part.replace(target)

    def row(self, what: str, measured: str, wanted: str = "", ok: bool | None = None) -> None:
        """Adds a line and shows it at once."""
        self.rows.append(Row(what, measured, wanted, ok))
        say(f"{what}: {measured}" + (f" (wanted {wanted}: {'yes' if ok else 'NO'})" if ok is not None else ""))

    def models(self) -> None:
        sizes = ("--layers", self.asked.layers, "--hidden", self.asked.hidden)
        make = [sys.executable, ROOT / "scripts/random_models.py"]
        run([*make, "llama", self.work / "llama", *sizes])
        run([*make, "llama", self.work / "llama-small", "--layers", 2, "--hidden", 256])
        run([*make, "bert", self.work / "bert", *sizes, "--dtype", "float16"])

    def files(self) -> None:
        device = "cuda" if self.gpus else "cpu"
        for name, model, fmha in (("llama", "llama", "enable"), ("unfused", "llama-small", "disable")):
            self._write(f"{name}.yaml", {
                "version": 1, "name": name, "builder": "torch", "model": str(self.work / model), "fmha": fmha,
                "limits": {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 2048},
                "canary": {"prompt": "The capital of France is", "max_tokens": 8}, "options": {"device": device},
            })  # fmt: skip
        shared = [{"gpus": {"count": 1, "share": True}}] * 2 if self.gpus else [{}, {}]
        self._deployment("shared", *shared)
        if len(self.gpus) > 1:
            self._deployment("apart", {"gpus": [self.gpus[0]["uuid"]]}, {"gpus": [self.gpus[1]["uuid"]]})

    def _deployment(self, name: str, llm: dict[str, Any], embed: dict[str, Any]) -> None:
        budgets = ({"gpu_memory": "8GiB"}, {"gpu_memory": "4GiB"}) if self.gpus else ({}, {})
        services = {
            LLM: {"runtime": "torch", "engine": "llama", **llm, **budgets[0]},
            EMBED: {"runtime": "flash", "model": str(self.work / "bert"), **embed, **budgets[1]},
        }
        for service in services.values():
            service["env"] = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        engines = {"llama": {"recipe": str(self.work / "llama.yaml")}}
        self._write(f"{name}.yaml", {"version": 1, "name": name, "engines": engines, "services": services})

    def _write(self, name: str, value: object) -> None:
        (self.work / name).write_text(json.dumps(value, indent=1))

    def engines(self) -> None:
        """Both builds at once: they are two programs on many cores."""
        with contextlib.ExitStack() as both:
            asked = {name: both.enter_context(self._building(name)) for name in ("llama", "unfused")}
            told = {name: process.communicate()[0] for name, process in asked.items()}
        for name, out in told.items():
            if asked[name].returncode:
                sys.exit(f"gpu_proof: building '{name}' failed: {out[-3000:]}")
            found = json.loads(out)["engines"][0]
            self.details[f"engine {name}"] = {key: found[key] for key in ("path", "seconds", "fmha", "guards")}
            steps = [line for line in (self.work / f"{name}.log").read_text().splitlines() if ": " in line]
            self.row(f"build of '{name}' (two builds at once)", f"{found['seconds']:.0f} s", "; ".join(steps)[:400])
        fmha = self.details["engine unfused"]["fmha"]
        self.row("fused attention off, by the package", str(fmha["built"]), "disable", fmha["built"] == "disable")

    @contextlib.contextmanager
    def _building(self, name: str) -> Iterator[subprocess.Popen[str]]:
        argv = [*COEXIST, "build", self.work / f"{name}.yaml", "--json"]
        with (self.work / f"{name}.log").open("w") as log, started(argv, log) as process:
            yield process

    def kernels(self) -> None:
        """Names of the kernels that ran, of both engines, from a trace of prefill and decode."""
        for name in ("llama", "unfused"):
            folder = self.details[f"engine {name}"]["path"]
            found = json.loads(run([sys.executable, ROOT / "scripts/gpu_proof.py", "--trace", folder]))
            self.details[f"kernels {name}"] = found
            fused = [kernel for kernel in found if any(word in kernel.lower() for word in FUSED)]
            wanted, ok = ("some", bool(fused)) if name == "llama" else ("none", not fused)
            self.row(f"fused attention kernels in a trace of '{name}'", ", ".join(fused)[:120] or "none", wanted, ok)

    def attention(self) -> None:
        """Relative error and first-call times of flash-attn-4, in two fresh processes."""
        caches = {
            "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
            "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": self.work / "fa4",
        }
        for boot in ("first", "second"):
            argv = ["env", *(f"{name}={value}" for name, value in caches.items())]
            found = json.loads(run([*argv, sys.executable, ROOT / "scripts/gpu_proof.py", "--attention"]))
            self.details[f"attention {boot}"] = found
            if "missing" in found:
                self.row("flash-attn-4", f"not here: {found['missing']}")
                return
            self.row(
                f"flash-attn-4, {boot} process: first call / then",
                f"{found['first_ms']:.0f} / {found['then_ms']:.2f} ms",
            )
        errors = max(self.details[f"attention {boot}"]["error"] for boot in ("first", "second"))
        self.row("flash-attn-4 against float32: relative error", f"{errors:.1e}", "under 3e-3", errors < 3e-3)
        cold = self.details["attention first"]["first_ms"] / self.details["attention first"]["then_ms"]
        self.row("flash-attn-4 without warm-up: first call over then", f"{cold:.0f}x", "over 1000x", cold > 1000)
        ratio = self.details["attention first"]["first_ms"] / self.details["attention second"]["first_ms"]
        self.row("compile of flash-attn-4, first over second process", f"{ratio:.0f}x", "at least 20x", ratio >= 20)

    def boots(self) -> None:
        """Of the engine and the frontend on a GPU each, where there are two."""
        name = "apart" if len(self.gpus) > 1 else "shared"
        argv = [*COEXIST, "bench", "cold-start", self.work / f"{name}.yaml", "--runs", self.asked.boots, "--load", "2s",
                "--json", "--plot", self.work / "boots.svg"]  # fmt: skip
        found = json.loads(run([*argv, *(["--warmup", self.asked.warmup] if self.asked.warmup else [])], check=False))
        if "error" in found:
            sys.exit(f"gpu_proof: bench: {found['error']}")
        self.row("boots, on a GPU each or on one: each condition", f"{name}: " + ", ".join(
            f"{each['name']} {each['boots']}" for each in found["conditions"]))  # fmt: skip
        self.details["bench"] = found
        for target in found["targets"]:
            measured = "not seen" if target["measured"] is None else f"{target['measured']:.4g}"
            name = f"{target['service']}: {target['id'].replace('_', ' ')}"
            self.row(name, measured, f"at most {target['at_most']}", target["pass"])
        for row in found["without_warmup"]:
            over = row["first_over_steady"]
            self.row(
                f"{row['service']}: first over steady, warm-up {row['warmup']}", "-" if over is None else f"{over:.2f}x"
            )
        cold, full = (next((c for c in found["conditions"] if c["name"] == name), None) for name in ("cold", "full"))
        for a, b in zip(cold["services"], full["services"], strict=True) if cold and full else ():
            times = ", ".join(f"{state} {a['stages'][state]:.2f} / {b['stages'][state]:.2f} s" for state in b["stages"])
            self.row(f"{a['name']}: empty / filled caches", times)

    def beside(self, name: str) -> None:
        """Placement and interference of one deployment that runs once."""
        found = asyncio.run(interference(self.work / f"{name}.yaml"))
        self.details[f"beside {name}"] = found
        for service in found["status"]["services"]:
            place = service["placement"]
            on_plan = place["on_plan_percent"] if place else None
            drift = [*place["drift"], *place["foreign"], *place["over_budget"]] if place else []
            measured = f"threads {on_plan}% on plan; {'; '.join(map(str, drift)) or 'no drift'}"
            self.row(f"{name}: {service['name']} on plan", measured, "100%, no drift", on_plan == 100 and not drift)
        for service, each in found["services"].items():
            factor = each["together_per_s"] / each["alone_per_s"] if each["alone_per_s"] else 0.0
            first = each["first_beside_ms"] / each["first_alone_ms"]
            self.row(
                f"{name}: {service} with its neighbour under load, over alone",
                f"rate {factor:.2f}x of {each['alone_per_s']:.0f} {each['unit']}/s, first token {first:.2f}x of "
                f"{each['first_alone_ms']:.1f} ms",
            )
        self.row(f"{name}: steps that ran without a captured graph", json.dumps(found["eager"]))
        for service, keys in found["keys"].items():
            compiled = keys.get("compiled") or []
            self.row(f"{name}: keys {service} compiled, by its libraries' own caches", f"{len(compiled)}: " +
                     ", ".join(map(str, compiled))[:200])  # fmt: skip

    def weights(self) -> None:
        """Reading weights beside a plain read of the same file."""
        file = Path(self.details["engine llama"]["path"]) / "model.safetensors"
        begin_s = time.monotonic()
        with file.open("rb", buffering=0) as source:
            while source.read(1 << 24):
                pass
        plain_s, size = time.monotonic() - begin_s, file.stat().st_size
        full = next(c for c in self.details["bench"]["conditions"] if c["name"] in ("full", self.asked.warmup))
        weights_s = next(s for s in full["services"] if s["name"] == LLM)["parts"].get("weights") or 0.0
        share = plain_s / weights_s if weights_s else 0.0
        measured = f"{size / weights_s / 1e9 if weights_s else 0:.2f} against {size / plain_s / 1e9:.2f} GB/s"
        self.row("weights read by the engine / a plain read of the file", measured, "at least 50%", share >= 0.5)

    def table(self) -> str:
        lines = [f"{row.what} | {row.measured} | {row.wanted} | {VERDICT[row.ok]}" for row in self.rows]
        return "\n".join(["what | measured | wanted | met", *lines])

    def document(self) -> dict[str, Any]:
        machine = {"gpus": [gpu["name"] for gpu in self.gpus], "date": time.strftime("%Y-%m-%d"), **_versions()}
        rows = [asdict(row) for row in self.rows]
        return {"schema": 1, "machine": machine, "rows": rows, "details": self.details, "done": self.done}


VERDICT = {True: "yes", False: "NO", None: ""}
FUSED = ("fmha", "flash", "efficient_attention", "attention_kernel", "cudnn_generated", "mem_eff")


def _versions() -> dict[str, Any]:
    import torch

    return {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}


async def interference(config: Path) -> dict[str, Any]:
    """Rates and first tokens of each service alone and with the other under load, and the status of that boot."""
    from toolkit import workflow
    from toolkit.assemble import launches
    from toolkit.config import load as config_load
    from toolkit.home import Home
    from toolkit.warm import Target

    stage = workflow.prepare(config_load.deployment(config), Home.find(), say)
    async with workflow.started(stage, lambda _: None) as supervisor, aiohttp.ClientSession(trust_env=False) as http:
        await supervisor.wait_ready(600)
        targets = {
            each.name: Target(f"http://127.0.0.1:{each.port}", launches.launch(stage, each.name, "-").probes)
            for each in stage.plan.services
        }
        services = {name: await _alone(target, http) for name, target in targets.items()}
        await _together(targets, http, services)
        for name, target in targets.items():
            other = next(each for each in targets if each != name)
            services[name]["first_beside_ms"] = await _first_beside(target, targets[other], http)
        async with http.get(targets[LLM].base_url + "/metrics") as answer:
            text = await answer.text()
        keys = {name: await _keys(target, http) for name, target in targets.items()}
        return {"services": services, "status": supervisor.snapshot(), "eager": _eager(text), "keys": keys}


async def _keys(target: Any, http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.get(target.base_url + "/v1/warmup/keys") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def _alone(target: Any, http: aiohttp.ClientSession) -> dict[str, Any]:
    from toolkit.bench import load, measures
    from toolkit.supervise.clock import SystemClock

    came = await load.run(target, http, SystemClock(), LOAD_S)
    rate = measures.steady_rate(measures.rates(came.arrivals_s, LOAD_S))
    return {"unit": came.unit, "alone_per_s": rate, "first_alone_ms": await _first_ms(target, http)}


async def _together(targets: dict[str, Any], http: aiohttp.ClientSession, services: dict[str, Any]) -> None:
    from toolkit.bench import load, measures
    from toolkit.supervise.clock import SystemClock

    came = await asyncio.gather(*(load.run(target, http, SystemClock(), LOAD_S) for target in targets.values()))
    for name, each in zip(targets, came, strict=True):
        services[name]["together_per_s"] = measures.steady_rate(measures.rates(each.arrivals_s, LOAD_S))


async def _first_beside(target: Any, other: Any, http: aiohttp.ClientSession) -> float:
    from toolkit.bench import load
    from toolkit.supervise.clock import SystemClock

    task = asyncio.create_task(load.run(other, http, SystemClock(), LOAD_S))
    await asyncio.sleep(0.3)
    found = await _first_ms(target, http)
    await task
    return found


async def _first_ms(target: Any, http: aiohttp.ClientSession) -> float:
    """The median of ten first tokens, of prompts and lengths that were not asked before."""
    from toolkit.supervise.clock import SystemClock
    from toolkit.warm.client import Client

    client = Client(target, http)
    seeds = range(1 << 50, (1 << 50) + 200, 20)
    return statistics.median([await client.answer_ms(SystemClock(), 17, seed, {}) for seed in seeds])


def _eager(metrics: str) -> dict[str, float]:
    lines = [line for line in metrics.splitlines() if line.startswith("coexist_server_eager_steps_total{")]
    return {line.partition('reason="')[2].partition('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def trace(engine_dir: Path) -> list[str]:
    """Names of the GPU kernels of one prefill and one decode step (on a processor: of its operators)."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from toolkit.serve.compiled import CompiledEngine

    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = CompiledEngine.load(engine_dir, device)
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        engine.prefill(0, [5] * 33)
        engine.decode([0], [6])
        if device == "cuda":
            torch.cuda.synchronize()
    return sorted({event.key for event in seen.key_averages()})


def attention() -> dict[str, Any]:
    """flash-attn-4 on packed texts of several lengths, beside torch's fused attention in float32."""
    import torch
    from torch.nn import functional

    from toolkit.serve.arguments import without_cudnn_attention
    from toolkit.serve.attention import kernel, layout

    try:
        flash, _ = kernel("fa4")
    except (ImportError, OSError) as error:
        return {"missing": str(error)[:200]}
    if not torch.cuda.is_available():
        return {"missing": "no GPU"}
    without_cudnn_attention()
    device = torch.device("cuda")
    where = layout([5, 5, 40, 128, 300], device)
    tokens = int(where.cu_seqlens[-1])
    q, k, v = (torch.randn(tokens, 12, 64, device=device, dtype=torch.float16) for _ in range(3))
    first_ms, found = _timed(torch, lambda: flash(q, k, v, where))
    then_ms = statistics.median(_timed(torch, lambda: flash(q, k, v, where))[0] for _ in range(20))
    ends = where.cu_seqlens.tolist()
    parts = []
    for begin, end in itertools.pairwise(ends):
        one = (each[begin:end].float().transpose(0, 1)[None] for each in (q, k, v))
        parts.append(functional.scaled_dot_product_attention(*one)[0].transpose(0, 1))
    right = torch.cat(parts)
    error = float((found.float() - right).norm() / right.norm())
    return {"first_ms": first_ms, "then_ms": then_ms, "error": error}


def _timed(torch: Any, work: Callable[[], Any]) -> tuple[float, Any]:
    torch.cuda.synchronize()
    begin_s = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin_s) * 1000, found


def steps(proof: Proof) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "models", proof.models
    yield "engines", proof.engines
    yield "kernels", proof.kernels
    yield "attention", proof.attention
    yield "boots", proof.boots
    yield "weights", proof.weights
    yield "beside", lambda: proof.beside("shared")
    if len(proof.gpus) > 1:
        yield "apart", lambda: proof.beside("apart")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("gpu-proof"), help="folder for models, files and results")
    parser.add_argument("--boots", type=int, default=20)
    parser.add_argument("--warmup", choices=("none", "single", "full"), help="boot only this mode")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--json", type=Path, help="write everything here too")
    parser.add_argument("--until", metavar="STEP", help="end before this step; the next call goes on")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--attention", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if asked.trace or asked.attention:
        print(json.dumps(trace(asked.trace) if asked.trace else attention()))
        return
    asked.work = asked.work.absolute()
    asked.work.mkdir(parents=True, exist_ok=True)
    proof = Proof(asked)
    proof.files()
    for name, step in steps(proof):
        if name in proof.done:
            continue
        if name == asked.until:
            return
        say(f"== {name}")
        step()
        proof.keep(name)
    print(proof.table())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        say("interrupted; the next call goes on with the step that was at work")
        sys.exit(130)
