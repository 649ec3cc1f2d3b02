"""A stand-in for ``trtllm-serve`` of one release: strict about all it is told, and able to misbehave as real ones do.

``install`` makes an environment with it. The release is what the metadata there says. Variable ``TRTLLM_STANDIN`` (or
``misbehave`` of ``standin.json``) names what goes wrong, separated by commas:

hang · early-health=S (``/health`` is 200 at once, everything else 503 for S seconds) · load=S · slow-first=N
· ignore-term · setsid-rank · crash=S (S seconds after it is ready) · mute (503 for ever after SIGUSR1)
· no-answer (200 without a completion) · wrong · fallback (the attention backend is TRTLLM, and the log says so)
· echo-fallback (only the arguments in the log show it) · empty-first
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

HERE, ROOT = Path(__file__), Path(__file__).resolve().parents[2]
TABLES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    HERE.with_name("trtllm_serve_options.json").read_text(encoding="utf-8")
)
COMMANDS = ("serve", "disaggregated", "disaggregated_mpi_worker", "mm_embedding_serve")
BODY = {
    *("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "stop"),
    *("seed", "echo", "logprobs", "best_of", "user", "detokenize", "ignore_eos", "top_k"),
}
# Of the options file: everything that the release's own text or its pages name there.
TOP_KEYS = {
    *("kv_cache_config", "enable_chunked_prefill", "speculative_config", "cuda_graph_config", "enable_attention_dp"),
    *("max_batch_size", "max_num_tokens", "max_seq_len", "trust_remote_code", "enable_autotuner", "print_iter_log"),
    *("scheduler_config", "lora_config", "moe_config", "enable_iter_perf_stats"),
}
KV_KEYS = {
    *("enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length", "free_gpu_memory_fraction"),
    *("host_cache_size", "onboard_blocks", "cross_kv_cache_fraction", "dtype", "tokens_per_block"),
    *("enable_partial_reuse", "copy_on_partial_reuse"),
}
MPI_SIZE = "tllm_mpi_size"
PAGED = ("enable_block_reuse", "enable_chunked_prefill", "speculative_config")
WORDS = ["rain", "falls", "on", "the", "old", "stone", "house", "by", "a", "river", "under", "trees"]


class RefusedError(Exception):
    """What click refuses: exit status 2."""


class LoadError(Exception):
    """What ends the server while it loads: exit status 1."""


def table(release: str) -> dict[str, dict[str, Any]]:
    """The options of a release; between two that were read, what both have."""
    version = Version(release)
    known = [each for each in TABLES if Version(each) <= version]
    if not known:
        raise SystemExit(f"trtllm-serve is not part of {release}")
    older = max(known, key=Version)
    newer = min((each for each in TABLES if Version(each) >= version), key=Version, default=older)
    return {name: spec for name, spec in TABLES[older].items() if name in names_of(TABLES[newer])}


def names_of(options: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {alias: name for name, spec in options.items() for alias in (name, *spec.get("aliases", ()))}


def parse(argv: list[str], release: str) -> tuple[str, dict[str, Any]]:
    """The model and the options, by their oldest name without dashes."""
    options, grouped = table(release), Version(release) >= Version("0.19.0")
    rest = list(argv)
    if rest and rest[0] in COMMANDS and grouped:
        command = rest.pop(0)
        if command != "serve":
            raise RefusedError(f"{command} is not what this stand-in does")
    elif rest and rest[0].startswith("-") and grouped:
        raise RefusedError(f"No such option: {rest[0]}")
    names, found, models = names_of(options), {}, []
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            models.append(word)
            continue
        if word not in names:
            raise RefusedError(f"No such option: {word}")
        found[oldest(names[word], options)] = value_of(word, rest, options[names[word]])
    if len(models) != 1:
        raise RefusedError(
            "Missing argument 'MODEL'." if not models else f"Got unexpected extra argument ({models[1]})"
        )
    return models[0], found


def oldest(name: str, options: dict[str, dict[str, Any]]) -> str:
    names = (name, *options[name].get("aliases", ()))
    wanted = ("--tp_size", "--pp_size", "--ep_size", "--kv_cache_free_gpu_memory_fraction", "--extra_llm_api_options")
    return next((each for each in names if each in wanted), name)[2:]


def value_of(word: str, rest: list[str], spec: dict[str, Any]) -> Any:
    if spec["kind"] == "flag":
        return True
    if not rest:
        raise RefusedError(f"Option '{word}' requires an argument.")
    value = rest.pop(0)
    if "choices" in spec and value not in spec["choices"]:
        raise RefusedError(f"Invalid value for '{word}': '{value}' is not one of {', '.join(spec['choices'])}.")
    kind = {"int": int, "float": float}.get(spec["kind"], str)
    try:
        return kind(value)
    except ValueError:
        raise RefusedError(f"Invalid value for '{word}': '{value}' is not a valid {spec['kind']}.") from None


def options_file(path: str | None, release: str, pytorch: bool) -> dict[str, Any]:
    """The arguments in the file; unknown ones are an error, as unknown keyword arguments are."""
    if path is None:
        return {}
    content = yaml.safe_load(Path(path).read_text())
    nested = Version(release) < Version("0.21.0")
    known = TOP_KEYS | ({"pytorch_backend_config"} if nested else {"attn_backend"})
    for key in content:
        if key not in known or (key in ("attn_backend", "pytorch_backend_config") and not pytorch):
            raise LoadError(f"ValueError: unexpected keyword argument '{key}'")
    for key in content.get("kv_cache_config", {}):
        if key not in KV_KEYS:
            raise LoadError(f"ValueError: KvCacheConfig has no field '{key}'")
    return dict(content)


@dataclass
class Server:
    """One server; ``args`` as parsed, ``extra`` from the options file, ``wrongs`` what it does wrong."""

    release: str
    settings: dict[str, Any]
    model: str
    args: dict[str, Any]
    extra: dict[str, Any]
    wrongs: dict[str, str]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    engine: dict[str, Any] | None = None
    started_s: float = field(default_factory=time.monotonic)
    completions: int = 0
    muted: bool = False
    ranks: list[subprocess.Popen[bytes]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def world_size(self) -> int:
        return int(self.args.get("tp_size", 1)) * int(self.args.get("pp_size", 1))

    @property
    def name(self) -> str:
        return str(self.args.get("served_model_name") or Path(self.model).name)

    def number(self, wrong: str) -> float:
        return float(self.wrongs.get(wrong) or 0)

    def loading(self) -> bool:
        return time.monotonic() - self.started_s < self.number("early-health")


def load(server: Server) -> None:
    """Everything that a real one refuses while it loads. Raises LoadError."""
    config = read_config(Path(server.model))
    pytorch = backend_of(server) == "pytorch"
    if "build_config" in config:
        server.engine = config
        load_engine(server, config, pytorch)
    elif not pytorch:
        raise LoadError("an engine would be built from this checkpoint, which this stand-in does not do")
    visible = [each for each in server.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if visible and len(visible) < server.world_size:
        raise LoadError("RuntimeError: CUDA error: invalid device ordinal")
    if visible and server.args.get("gpus_per_node", len(visible)) != len(visible):
        raise LoadError("gpus_per_node is not the number of visible devices")


def backend_of(server: Server) -> str:
    default = table(server.release).get("--backend", {}).get("default")
    return {"pytorch": "pytorch", "_autodeploy": "pytorch"}.get(server.args.get("backend") or default or "trt", "trt")


def read_config(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / "config.json").read_text()))
    except OSError as error:
        raise LoadError(f"{folder} is no local folder with a config.json ({error.strerror})") from None


def load_engine(server: Server, config: dict[str, Any], pytorch: bool) -> None:
    if Version(server.release) > Version("1.3.0rc20"):
        raise LoadError("ValueError: the TensorRT backend has been removed")
    if pytorch:
        raise LoadError("ValueError: a TensorRT engine cannot be run by the PyTorch backend")
    if config.get("version") != server.release:
        raise LoadError(f"Engine version {config.get('version')} does not match the library's {server.release}")
    tokenizer = server.args.get("tokenizer")
    if tokenizer is None or not (Path(tokenizer) / "config.json").is_file():
        raise LoadError("OSError: Can't load tokenizer: an engine folder has none, give --tokenizer")
    mapping = config["pretrained_config"]["mapping"]
    if mapping["world_size"] != server.world_size or mapping["tp_size"] != server.args.get("tp_size", 1):
        raise LoadError(f"Assertion failed: mpiSize == tp * pp ({server.world_size} != {mapping['world_size']})")
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len"):
        built = config["build_config"].get(name)
        if built is not None and server.args.get(name, 2048) > built:
            raise LoadError(f"{name} {server.args.get(name, 'by default 2048')} is over the engine's {built}")
    need_paged(server, config["build_config"]["plugin_config"])


def need_paged(server: Server, plugins: dict[str, Any]) -> None:
    """Block reuse is on by default where there is an options file."""
    if plugins.get("use_paged_context_fmha") and plugins.get("context_fmha"):
        return
    reuse = server.extra.get("kv_cache_config", {}).get(
        "enable_block_reuse", "--extra_llm_api_options" in names_of(table(server.release))
    )
    asked = {**server.extra, **server.args, "enable_block_reuse": reuse}
    for key in PAGED:
        if asked.get(key):
            raise LoadError(f"Assertion failed: {key} requires paged context FMHA, which this engine was built without")


def attention(server: Server) -> str | None:
    """The attention backend that is really used; None for engines."""
    if server.engine is not None:
        return None
    asked = server.extra.get("attn_backend") or server.extra.get("pytorch_backend_config", {}).get("attn_backend")
    if "fallback" in server.wrongs or (asked not in (None, "TRTLLM", "VANILLA")):
        log("W", "Falling back to TRTLLM attention backend")
        return "TRTLLM"
    if "echo-fallback" in server.wrongs:
        log("I", "LLM Args: model='x' attn_backend='TRTLLM' enable_chunked_prefill=False")
        return "TRTLLM"
    log("I", f"LLM Args: attn_backend='{asked or 'TRTLLM'}'")
    return asked or "TRTLLM"


def log(level: str, text: str) -> None:
    print(f"[01/01/2026-00:00:00] [TRT-LLM] [{level}] {text}", flush=True)


MPI_KEEPS_MASK = {"OMPI_MCA_rmaps_base_inherit": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def keep_or_lose_mask(release: str) -> None:
    """What becomes of a worker's mask.

    Open MPI 4 binds one that a program starts itself to the machine's first core, unless it is told not to. From 1.2 on
    a worker that starts constrained removes the constraint, unless it is told to leave it.
    """
    pool = "TLLM_SPAWN_PROXY_PROCESS" not in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ
    if pool and not MPI_KEEPS_MASK.items() <= os.environ.items():
        os.sched_setaffinity(0, {0})
    if Version(release) >= Version("1.2.0rc0") and "TLLM_NUMA_AWARE_WORKER_AFFINITY" not in os.environ:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def record(settings: dict[str, Any], rank: int, **more: Any) -> None:
    """What this rank was given, as a file beside the environment."""
    folder = Path(settings["record"])
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "rank": rank, "pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ),
        "cpus": sorted(os.sched_getaffinity(0)), "memory": memory_policy(), **more,
    }  # fmt: skip
    path = folder / f"rank{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(told))
    path.with_suffix(".part").rename(path)


def memory_policy() -> list[int]:
    """Mode and bits of the NUMA policy of this process, as get_mempolicy(2) tells; empty: it may not be asked."""
    number = {"x86_64": 239, "aarch64": 236}.get(os.uname().machine)
    mode, mask = ctypes.c_int(), ctypes.c_ulong()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = number is None or libc.syscall(number, ctypes.byref(mode), ctypes.byref(mask), 65, None, 0)
    return [] if failed else [mode.value, mask.value]


def start_ranks(server: Server) -> None:
    """The ranks beside this one, unless a launcher has started them."""
    if "TLLM_SPAWN_PROXY_PROCESS" in os.environ:
        started = int(os.environ[MPI_SIZE])
        if started != server.world_size:
            raise LoadError(f"the launcher started {started} ranks, not {server.world_size}")
        return
    if server.world_size > 1 and os.geteuid() == 0 and "OMPI_ALLOW_RUN_AS_ROOT" not in os.environ:
        raise LoadError("orted has detected an attempt to run as root")
    for rank in range(1, server.world_size):
        env = {**os.environ, "OMPI_COMM_WORLD_RANK": str(rank)}
        apart = "setsid-rank" in server.wrongs and rank == server.world_size - 1
        server.ranks.append(subprocess.Popen(worker_argv(), env=env, start_new_session=apart))


def wait_for(server: Server) -> None:
    """The workers of the other ranks are there."""
    files = [Path(server.settings["record"]) / f"rank{rank}.json" for rank in range(1, server.world_size)]
    while not all(file.exists() for file in files):
        time.sleep(0.02)


def worker_argv() -> list[str]:
    return [sys.executable, sys.argv[0], "--standin-worker"]


def work(settings: dict[str, Any], release: str) -> int:
    """A rank that waits for work until it is ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_or_lose_mask(release)
    record(settings, int(os.environ["OMPI_COMM_WORLD_RANK"]))
    time.sleep(600)
    return 0


def answer(server: Server, prompt: str, tokens: int) -> list[str]:
    """The tokens of an answer: fixed by the prompt, or as told."""
    told = server.settings.get("answers", {}).get(prompt)
    if "wrong" in server.wrongs:
        return [" nonsense"] * tokens
    if told is not None:
        return list(told)[:tokens] if isinstance(told, list) else [told]
    seed = hashlib.sha256(prompt.encode()).digest()
    return [f" {WORDS[seed[at % 32] % len(WORDS)]}" for at in range(tokens)]


class Handler(BaseHTTPRequestHandler):
    server_of: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        server = self.server_of
        if self.muted():
            self.reply(503, {"error": "event loop is dead"})
        elif self.path == "/health":
            self.reply(200, {})
        elif server.loading():
            self.reply(503, {"error": "loading"})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": server.name, "object": "model"}]})
        elif self.path == "/version":
            self.reply(200, {"version": server.release})
        elif self.path == "/health_generate" and Version(server.release) >= Version("1.3.0rc3"):
            self.reply(503 if "no-answer" in server.wrongs else 200, {})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.muted() or self.server_of.loading():
            self.reply(503, {"error": "not now"})
        elif self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.reply(404, {"detail": "Not Found"})
        elif extra := set(body) - BODY:
            self.reply(400, {"error": f"extra fields not permitted: {sorted(extra)}"})
        elif body.get("model") != self.server_of.name:
            self.reply(404, {"error": f"no model '{body.get('model')}'"})
        else:
            self.complete(body)

    def muted(self) -> bool:
        return self.server_of.muted

    def complete(self, body: dict[str, Any]) -> None:
        server = self.server_of
        with server.lock:
            server.completions += 1
            number = server.completions
        if number <= server.number("slow-first"):
            time.sleep(0.3)
        chat = self.path.startswith("/v1/chat")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        prompts = prompt if isinstance(prompt, list) else [prompt]
        if too_long := self.too_long(server, prompts):
            self.reply(400, {"error": too_long})
        elif "no-answer" in server.wrongs:
            self.reply(200, {"choices": []})
        elif body.get("stream"):
            self.stream(answer(server, prompts[0], body.get("max_tokens", 16)), chat)
        else:
            texts = ["".join(answer(server, each, body.get("max_tokens", 16))) for each in prompts]
            self.reply(
                200, {"model": server.name, "choices": [choice(at, text, chat) for at, text in enumerate(texts)]}
            )

    def too_long(self, server: Server, prompts: list[str]) -> str | None:
        build = server.engine["build_config"] if server.engine else {}
        longest = max(len(prompt.split()) for prompt in prompts)
        if longest > build.get("max_input_len", 1 << 20):
            return f"prompt of {longest} tokens is over max_input_len {build['max_input_len']}"
        if len(prompts) > build.get("max_batch_size", 1 << 20):
            return f"{len(prompts)} prompts are over max_batch_size {build['max_batch_size']}"
        return None

    def stream(self, tokens: list[str], chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        empty = [""] * 3 if "empty-first" in self.server_of.wrongs else []
        for token in [*empty, *tokens]:
            piece = {"delta": {"content": token}} if chat else {"text": token}
            self.event({"choices": [{"index": 0, "finish_reason": None, **piece}]})
        self.event({"choices": [{"index": 0, "finish_reason": "length", **({"delta": {}} if chat else {"text": ""})}]})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def event(self, document: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(document)}\n\n".encode())

    def reply(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def choice(index: int, text: str, chat: bool) -> dict[str, Any]:
    said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    return {"index": index, "finish_reason": "length", **said}


def serve(server: Server) -> int:
    """Serves until it is ended."""
    http = ThreadingHTTPServer((server.args.get("host", "localhost"), server.args.get("port", 8000)), Handler)
    http.daemon_threads = True
    Handler.server_of = server
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore-term" in server.wrongs else lambda *_: end(server))
    signal.signal(signal.SIGUSR1, lambda *_: mute(server))
    if "crash" in server.wrongs:
        threading.Timer(server.number("crash"), crash).start()
    log("I", f"Uvicorn running on http://{server.args.get('host')}:{server.args.get('port')}")
    http.serve_forever()
    return 0


def end(server: Server) -> None:
    for rank in server.ranks:
        rank.terminate()
    os._exit(0)


def mute(server: Server) -> None:
    server.muted = "mute" in server.wrongs


def crash() -> None:
    log("E", "Assertion failed: CUDA error: an illegal memory access was encountered")
    os._exit(7)


def main(program: Path) -> int:
    folder = program.parent.parent
    settings = json.loads((folder / "standin.json").read_text())
    release = installed(folder)
    if sys.argv[1:] == ["--standin-worker"]:
        return work(settings, release)
    told = os.environ.get("TRTLLM_STANDIN") or settings.get("misbehave", "")
    wrongs = dict(each.partition("=")[::2] for each in told.split(",") if each)
    try:
        model, args = parse(sys.argv[1:], release)
    except RefusedError as refused:
        print(f"Usage: trtllm-serve [OPTIONS] MODEL\n\nError: {refused}", file=sys.stderr)
        return 2
    return run(Server(release, settings, model, args, {}, wrongs))


def run(server: Server) -> int:
    log("I", f"TensorRT-LLM version: {server.release}")
    try:
        pytorch = backend_of(server) == "pytorch"
        server.extra = options_file(server.args.get("extra_llm_api_options"), server.release, pytorch)
        load(server)
        keep_or_lose_mask(server.release)
        start_ranks(server)
        wait_for(server)
        record(server.settings, 0, extra=server.extra, attention=attention(server))
    except LoadError as error:
        log("E", f"Failed to initialize executor: {error}")
        print(f"RuntimeError: {error}", file=sys.stderr, flush=True)
        return 1
    if "hang" in server.wrongs:
        time.sleep(600)
    time.sleep(server.number("load"))
    return serve(server)


def installed(folder: Path) -> str:
    (info,) = folder.glob("lib/python3*/site-packages/tensorrt_llm-*.dist-info")
    return info.name.removeprefix("tensorrt_llm-").removesuffix(".dist-info")


PROGRAMS = {
    "trtllm-serve": "from tests.standins import trtllm_serve\nsys.exit(trtllm_serve.main(Path(sys.argv[0])))",
    "trtllm-llmapi-launch": "from tests.standins import mpirun\nsys.exit(mpirun.llmapi_launch(sys.argv[1:]))",
    "mpirun": "from tests.standins import mpirun\nsys.exit(mpirun.main(sys.argv[1:]))",
}


def install(folder: Path, release: str, programs: tuple[str, ...] = tuple(PROGRAMS), **settings: Any) -> Path:
    """The interpreter of an environment that holds this release; ``settings`` are ``misbehave`` and ``answers``."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.10.12\n")
    python = folder / "bin" / "python"
    script(python, f"os.execv({sys.executable!r}, sys.argv)")
    for name in programs:
        script(folder / "bin" / name, PROGRAMS[name])
    for name, version in (("tensorrt_llm", release), ("tensorrt", "10.9.0.34")):
        info = folder / "lib" / "python3.10" / "site-packages" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "standin.json").write_text(json.dumps({"record": str(folder / "record"), **settings}))
    return python


def script(path: Path, code: str) -> None:
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT)!r})\n{code}\n"
    )
    path.chmod(0o755)


def records(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank of a stand-in wrote down."""
    found = (json.loads(path.read_text()) for path in (folder / "record").glob("rank*.json"))
    return {each["rank"]: each for each in found}


def engine(
    folder: Path, release: str, *, tp_size: int = 1, pp_size: int = 1, fused: bool = True, **limits: int
) -> Path:
    """A folder as trtllm-build of this release leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    plugins = {"context_fmha": fused, "use_paged_context_fmha": fused, "tokens_per_block": 32}
    sizes = {"max_batch_size": 8, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 4096, **limits}
    mapping = {"world_size": tp_size, "tp_size": tp_size, "pp_size": 1}
    document = {
        "version": release,
        "pretrained_config": {"architecture": "LlamaForCausalLM", "dtype": "float16", "mapping": mapping},
        "build_config": {**sizes, "kv_cache_type": "PAGED", "plugin_config": plugins},
    }
    (folder / "config.json").write_text(json.dumps(document))
    for rank in range(tp_size):
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    return folder
