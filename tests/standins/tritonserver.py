"""A stand-in for ``tritonserver`` with its TensorRT-LLM, Python and ensemble back ends: strict about all it is given.

Unknown flags, unknown fields of a ``config.pbtxt`` and unknown parameters of the back end are refused, and so is what
the real ones refuse or ignore to somebody's harm. Standard library only. Variable ``TRITON_STANDIN`` names what goes
wrong, separated by commas; ``TRITON_STANDIN_RECORD`` a file that gets a line about each start; ``TRITON_STANDIN_SHM`` a
folder in place of /dev/shm:

hang · load=S · unready (ready is 503 for ever) · warmup-error (a warm-up fails, and all is READY) · no-answer (200 with
an error) · wrong · slow-first=N · ignore-term · crash=S (S seconds after READY) · mute (503 for ever after SIGUSR1)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FLAGS = {
    **dict.fromkeys(("model-repository", "backend-directory", "log-file", "log-format", "http-address"), "text"),
    **dict.fromkeys(("grpc-address", "metrics-address", "model-control-mode", "load-model", "id"), "text"),
    **dict.fromkeys(("backend-config", "cuda-memory-pool-byte-size"), "text"),
    **dict.fromkeys(("http-port", "grpc-port", "metrics-port", "log-verbose", "http-thread-count"), "count"),
    **dict.fromkeys(("exit-timeout-secs", "model-load-thread-count", "buffer-manager-thread-count"), "count"),
    **dict.fromkeys(("pinned-memory-pool-byte-size",), "count"),
    **dict.fromkeys(("allow-http", "allow-grpc", "allow-metrics", "exit-on-error", "strict-readiness"), "truth"),
    **dict.fromkeys(("log-info", "log-warning", "log-error", "allow-gpu-metrics", "allow-cpu-metrics"), "truth"),
    "disable-auto-complete-config": "switch",
}
MANY = ("backend-config", "load-model", "model-repository", "cuda-memory-pool-byte-size")
TRUTHS = {"true": True, "false": False, "1": True, "0": False}
TYPES = {"TYPE_INT32": 4, "TYPE_INT64": 8, "TYPE_UINT64": 8, "TYPE_FP32": 4, "TYPE_FP16": 2, "TYPE_BOOL": 1}
TYPES |= {"TYPE_STRING": 0, "TYPE_UINT32": 4, "TYPE_BF16": 2}
# Fields of model_config.proto, as far as repositories of this back end use them.
TENSOR = {
    "name": str, "data_type": "word", "dims": int, "optional": bool, "allow_ragged_batch": bool,
    "reshape": {"shape": int},
}  # fmt: skip
ENTRY = {"key": str, "value": str}
SCHEMA: dict[str, Any] = {
    "name": str, "backend": str, "platform": str, "max_batch_size": int,
    "model_transaction_policy": {"decoupled": bool},
    "dynamic_batching": {
        "preferred_batch_size": int, "max_queue_delay_microseconds": int,
        "default_queue_policy": {"max_queue_size": int},
    },
    "input": TENSOR, "output": TENSOR,
    "instance_group": {"count": int, "kind": "word", "gpus": int, "name": str},
    "parameters": {"key": str, "value": {"string_value": str}},
    "model_warmup": {
        "name": str, "batch_size": int, "count": int,
        "inputs": {
            "key": str,
            "value": {
                "data_type": "word", "dims": int, "zero_data": bool, "random_data": bool, "input_data_file": str,
            },
        },
    },
    "ensemble_scheduling": {
        "step": {"model_name": str, "model_version": int, "input_map": ENTRY, "output_map": ENTRY}
    },
    "version_policy": {"latest": {"num_versions": int}},
}  # fmt: skip
PARAMETERS = {
    *("gpt_model_type", "gpt_model_path", "gpu_device_ids", "FORCE_CPU_ONLY_INPUT_TENSORS", "max_beam_width"),
    *("max_tokens_in_paged_kv_cache", "kv_cache_free_gpu_mem_fraction", "batch_scheduler_policy"),
    *("enable_kv_cache_reuse", "enable_chunked_context", "exclude_input_in_output", "decoding_mode"),
    *("executor_worker_path", "max_attention_window_size", "sink_token_length", "multi_block_mode", "cuda_graph_mode"),
    *("normalize_log_probs", "kv_cache_host_memory_bytes", "cancellation_check_period_ms", "participant_ids"),
    *("enable_context_fmha_fp32_acc", "medusa_choices", "encoder_model_path", "cuda_graph_cache_size"),
}
INFLIGHT: set[int] = set()


class RefusedError(Exception):
    """What ends the server while it starts."""


def parse(argv: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        kind = FLAGS.get(name.removeprefix("--")) if name.startswith("--") else None
        if kind is None:
            raise RefusedError(f"tritonserver: unrecognized option '{name}'")
        key = name[2:]
        if kind == "switch":
            if equals:
                raise RefusedError(f"tritonserver: option '{name}' doesn't allow an argument")
            found[key] = True
            continue
        if not equals:
            value = rest.pop(0)
        judged = valid(name, kind, value)
        if key in found and key not in MANY:
            raise RefusedError(f"tritonserver: option '{name}' is given twice")
        found[key] = [*found.get(key, []), judged] if key in MANY else judged
    if not found.get("model-repository"):
        raise RefusedError("Failed to start: --model-repository must be specified")
    if found.get("load-model") and found.get("model-control-mode") != "explicit":
        raise RefusedError("--load-model takes effect in explicit mode only")
    return found


def valid(name: str, kind: str, value: str) -> Any:
    if kind == "truth":
        if value.lower() not in TRUTHS:
            raise RefusedError(f"invalid argument for {name}: {value}")
        return TRUTHS[value.lower()]
    if kind == "count":
        if not value.isdecimal():
            raise RefusedError(f"invalid argument for {name}: {value}")
        return int(value)
    if name == "--backend-config" and not re.fullmatch(r"\w+,[\w-]+=.+", value):
        raise RefusedError(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {value}")
    return value


# Text format, against the schema.


def tokens(text: str) -> list[str]:
    found = re.findall(r'#[^\n]*|"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,#"]+', text)
    return [each for each in found if not each.startswith("#")]


def message(words: list[str], schema: dict[str, Any], end: str | None) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = {}
    while words:
        name = words.pop(0)
        if name == end:
            return made
        if name == ",":
            continue
        if name not in schema:
            raise RefusedError(f'Error parsing text-format inference.ModelConfig: has no field named "{name}"')
        if words[0] == ":":
            words.pop(0)
        elif words[0] not in "{[":
            raise RefusedError(f'Expected ":" after {name}')
        made.setdefault(name, []).extend(values(words, schema[name]))
    if end is not None:
        raise RefusedError(f'Expected "{end}"')
    return made


def values(words: list[str], kind: Any) -> list[Any]:
    if words[0] != "[":
        return [value(words, kind)]
    words.pop(0)
    made = []
    while words[0] != "]":
        if words[0] == ",":
            words.pop(0)
        else:
            made.append(value(words, kind))
    words.pop(0)
    return made


def value(words: list[str], kind: Any) -> Any:
    word = words.pop(0)
    if isinstance(kind, dict):
        if word != "{":
            raise RefusedError(f'Expected "{{", found "{word}"')
        return message(words, kind, "}")
    if kind is str:
        if not word.startswith('"'):
            raise RefusedError(f"Expected string, got: {word}")
        return json.loads(word)
    if kind is bool and word in ("true", "false"):
        return word == "true"
    if kind is int and re.fullmatch(r"-?\d+", word):
        return int(word)
    if kind == "word" and re.fullmatch(r"[A-Z][A-Z0-9_]+", word):
        return word
    raise RefusedError(f"Invalid value: {word}")


# Loading.


class Server:
    def __init__(self, flags: dict[str, Any]) -> None:
        self.flags = flags
        said = [each.partition("=") for each in os.environ.get("TRITON_STANDIN", "").split(",")]
        self.modes = {name: value for name, _, value in said}
        self.models: dict[str, dict[str, Any]] = {}
        self.ready = False
        self.mute = False
        self.answered = 0
        self.answers: dict[str, str] = {}
        self.region: Path | None = None

    def load(self) -> None:
        repository = Path(self.flags["model-repository"][0])
        asked = self.flags.get("load-model") if self.flags.get("model-control-mode") == "explicit" else None
        folders = [path for path in sorted(repository.iterdir()) if path.is_dir()] if repository.is_dir() else []
        if not folders:
            raise RefusedError(f"failed to stat file {repository}")
        for folder in folders:
            if asked is None or folder.name in asked:
                self.models[folder.name] = self.model(folder)
        self.take_region()
        for name, config in self.models.items():
            self.finish(repository / name, config)
        time.sleep(float(self.modes.get("load") or 0))

    def model(self, folder: Path) -> dict[str, Any]:
        path = folder / "config.pbtxt"
        if not path.is_file():
            raise RefusedError(f"Invalid model repository: {path} is missing")
        config = message(tokens(path.read_text()), SCHEMA, None)
        if config.get("name", [folder.name])[0] != folder.name:
            raise RefusedError(f"model name '{config['name'][0]}' does not match the folder '{folder.name}'")
        if not any(each.is_dir() and each.name.isdecimal() for each in folder.iterdir()):
            raise RefusedError(f"failed to load '{folder.name}', at least one version must be available")
        for group in config.get("instance_group", []):
            if group.get("gpus") and group.get("kind") != ["KIND_GPU"]:
                raise RefusedError(
                    f"instance group of model {folder.name} has kind KIND_CPU but specifies one or more GPUs"
                )
        for tensor in [*config.get("input", []), *config.get("output", [])]:
            if tensor["data_type"][0] not in TYPES or "dims" not in tensor:
                raise RefusedError(f"{folder.name}: tensor {tensor['name'][0]} has no type or no dims")
        return config

    def take_region(self) -> None:
        """Shared memory of the Python back end; a live instance with our prefix has it already."""
        settings = [
            each for each in self.flags.get("backend-config", []) if each.startswith("python,shm-region-prefix-name=")
        ]
        prefix = settings[-1].partition("=")[2] if settings else "triton_python_backend_shm_region_"
        self.region = Path(os.environ.get("TRITON_STANDIN_SHM", "/dev/shm"), f"{prefix}standin")
        try:
            os.close(os.open(self.region, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            self.region = None
            raise RefusedError(f"Unable to initialize shared memory key '{prefix}1' to requested size") from None

    def leave(self) -> None:
        if self.region is not None:
            self.region.unlink(missing_ok=True)

    def finish(self, folder: Path, config: dict[str, Any]) -> None:
        backend = config.get("backend", config.get("platform", [""]))[0]
        if backend == "tensorrtllm":
            self.engine(config)
        elif backend == "python" and not (folder / "1" / "model.py").is_file():
            raise RefusedError(f"failed to load '{folder.name}' version 1: Internal: model.py is missing")
        elif backend == "ensemble":
            for step in config["ensemble_scheduling"][0]["step"]:
                if step["model_name"][0] not in self.models:
                    raise RefusedError(
                        f"ensemble {folder.name} contains model {step['model_name'][0]} that is not available"
                    )
        elif backend not in ("python", "identity"):
            raise RefusedError(f"unable to find backend library for backend '{backend}'")
        for sample in config.get("model_warmup", []):
            self.warm(folder, config, sample, backend)

    def engine(self, config: dict[str, Any]) -> None:
        settings = {each["key"][0]: each["value"][0].get("string_value", [""])[0] for each in config["parameters"]}
        if unknown := sorted(key for key in settings if key not in PARAMETERS):
            raise RefusedError(f"the back end has no parameter {unknown[0]}")
        if settings["gpt_model_type"] not in ("V1", "inflight_batching", "inflight_fused_batching"):
            raise RefusedError(f"Invalid gpt_model_type {settings['gpt_model_type']}")
        if config.get("instance_group") != [{"count": [1], "kind": ["KIND_CPU"]}]:
            raise RefusedError("instances of this back end are of KIND_CPU, and one")
        folder = Path(settings["gpt_model_path"])
        built = json.loads((folder / "config.json").read_text())
        ranks = built["pretrained_config"]["mapping"]["world_size"]
        started = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        if ranks != started:
            raise RefusedError(f"MPI size {started} is not the engine's world size {ranks}: ({started} != {ranks})")
        if missing := [each for each in range(ranks) if not (folder / f"rank{each}.engine").is_file()]:
            raise RefusedError(f"rank{missing[0]}.engine is missing")
        visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        devices = [int(each) for each in settings.get("gpu_device_ids", "").split(",") if each]
        if not devices or any(each >= len(visible) for each in devices) or len(devices) != ranks:
            raise RefusedError(
                f"gpu_device_ids {devices}: invalid device ordinal; {len(visible)} are visible, {ranks} needed"
            )
        paged = built["build_config"]["plugin_config"].get("use_paged_context_fmha")
        for key in ("enable_kv_cache_reuse", "enable_chunked_context"):
            if settings.get(key) == "true" and not paged:
                raise RefusedError(f"{key} requires paged context FMHA, which this engine was built without")
        if not 0 < float(settings.get("kv_cache_free_gpu_mem_fraction", "0.9")) <= 1:
            raise RefusedError("kv_cache_free_gpu_mem_fraction is no fraction")
        said = folder / "standin.json"
        self.answers = json.loads(said.read_text()) if said.is_file() else {}

    def warm(self, folder: Path, config: dict[str, Any], sample: dict[str, Any], backend: str) -> None:
        if backend == "ensemble":
            return  # as real ones do: it is ignored
        declared = {each["name"][0]: each for each in config["input"]}
        given: dict[str, list[int]] = {}
        for each in sample["inputs"]:
            name, entry = each["key"][0], each["value"][0]
            if name not in declared or entry["data_type"] != declared[name]["data_type"]:
                raise RefusedError(f"warm-up input {name} is none of the model's, or of another type")
            count = 1
            for size in entry["dims"]:
                count *= size
            data = (folder / "warmup" / entry["input_data_file"][0]).read_bytes() if "input_data_file" in entry else b""
            if data and len(data) < count * TYPES[entry["data_type"][0]]:
                raise RefusedError(f"warmup setting expects more bytes than {entry['input_data_file'][0]} has")
            given[name] = list(struct.unpack(f"<{count}i", data[: 4 * count])) if data else [0] * count
        wrong = len(given["input_ids"]) != given["input_lengths"][0] or given["request_output_len"][0] < 1
        if "warmup-error" in self.modes:
            print(
                "E1129 10:00:00.000000 91 backend_model_instance.cc:99] warmup error: Internal - out of memory",
                flush=True,
            )
        elif wrong:
            raise RefusedError(
                f"failed to load '{folder.name}' version 1: failed to run warmup sample '{sample['name'][0]}'"
            )


# Answering.


def words_of(text: str, count: int) -> str:
    stock = ["rain", "falls", "on", "the", "old", "stone", "house", "by", "a", "river"]
    start = hashlib.sha256(text.encode()).digest()[0]
    return "".join(f" {stock[(start + at) % len(stock)]}" for at in range(count))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        triton: Server = self.server.triton
        if self.path == "/v2/health/live":
            self.say(200, "")
        elif self.path == "/v2/health/ready":
            self.say(200 if triton.ready and not triton.mute and "unready" not in triton.modes else 503, "")
        else:
            self.say(404, '{"error": "not found"}')

    def do_POST(self) -> None:
        triton: Server = self.server.triton
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match = re.fullmatch(r"/v2/models/(\w+)/(generate|generate_stream)", self.path)
        if match is None or match[1] not in triton.models:
            self.say(404, json.dumps({"error": f"Request for unknown model: '{self.path}' is not found"}))
            return
        if triton.mute:
            self.say(503, '{"error": "server is not ready"}')
            return
        INFLIGHT.add(threading.get_ident())
        try:
            self.answer(triton, match[1], match[2] == "generate_stream", body)
        finally:
            INFLIGHT.discard(threading.get_ident())

    def answer(self, triton: Server, model: str, stream: bool, body: dict[str, Any]) -> None:
        config = triton.models[model]
        declared = {each["name"][0]: each.get("optional") == [True] for each in config["input"]}
        if unknown := sorted(key for key in body if key not in declared):
            self.say(400, json.dumps({"error": f"unexpected inference input '{unknown[0]}' for model '{model}'"}))
            return
        if missing := sorted(key for key, optional in declared.items() if not optional and key not in body):
            self.say(400, json.dumps({"error": f"expected inference input '{missing[0]}' for model '{model}'"}))
            return
        asks_stream = body.get("stream", body.get("streaming", False))
        decoupled = (
            config.get("model_transaction_policy", [{}])[0].get("decoupled") == [True]
            or "ensemble_scheduling" in config
        )
        if stream != asks_stream or (stream and not decoupled):
            self.say(400, '{"error": "generate expects one response; a stream needs a decoupled model"}')
            return
        triton.answered += 1
        if triton.answered <= int(triton.modes.get("slow-first") or 0):
            time.sleep(0.4)
        if "no-answer" in triton.modes:
            self.say(200, '{"error": "in ensemble: CUDA out of memory"}')
            return
        pieces = list(self.pieces(triton, body))
        if not stream:
            self.say(200, json.dumps(self.joined(pieces)))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(f"data: {json.dumps(piece)}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def pieces(self, triton: Server, body: dict[str, Any]) -> Any:
        if "text_input" in body:
            text, count = body["text_input"], int(body["max_tokens"])
            said = " wrong" if "wrong" in triton.modes else triton.answers.get(text, words_of(text, count))
            yield from ({"model_name": "ensemble", "text_output": f" {word}"} for word in said.split()[:count])
        else:
            first = sum(body["input_ids"]) % 1000 + ("wrong" in triton.modes)
            for at in range(int(body["request_output_len"])):
                yield {"output_ids": first + at, "sequence_length": 1}

    def joined(self, pieces: list[dict[str, Any]]) -> dict[str, Any]:
        if "text_output" in pieces[0]:
            return {"model_name": "ensemble", "text_output": "".join(each["text_output"] for each in pieces)}
        ids = [each["output_ids"] for each in pieces]
        return {"output_ids": ids if len(ids) > 1 else ids[0], "sequence_length": len(ids)}

    def say(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


class Front(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def door(flags: dict[str, Any], name: str, port: int) -> tuple[str, int] | None:
    if not flags.get(f"allow-{name}", True):
        return None
    return flags.get(f"{name}-address", flags.get("http-address", "0.0.0.0")), flags.get(f"{name}-port", port)


def main(argv: list[str]) -> int:
    record(argv)
    server = None
    try:
        server = Server(parse(argv))
        front = open_doors(server)
        server.load()
    except (RefusedError, OSError) as error:
        if server is not None:
            server.leave()
        print(
            f"E1129 10:00:00.000000 91 server.cc:251] {error}\nerror: creating server: Internal - {error}", flush=True
        )
        return 1
    serve(server, front)
    return 0


def open_doors(server: Server) -> Front | None:
    """Binds all of them, and listens on HTTP at once: live is answered while models load."""
    front = None
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        place = door(server.flags, name, port)
        if place is None:
            continue
        try:
            if name == "http":
                front = Front(place, Handler)
                front.triton = server
            else:
                server.__dict__.setdefault("held", []).append(socket.create_server(place))
        except OSError:
            raise RefusedError(
                f"failed to start {name} service: Unavailable - Socket '{place[0]}:{place[1]}' already in use"
            ) from None
    return front


def record(argv: list[str]) -> None:
    if path := os.environ.get("TRITON_STANDIN_RECORD"):
        line = {"argv": argv, "env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "pid": os.getpid()}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def serve(server: Server, front: Front | None) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore-term" in server.modes else lambda *_: ended.set())
    signal.signal(signal.SIGUSR1, lambda *_: setattr(server, "mute", True))
    if front is not None:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        print('I1129 10:00:00.000000 91 http_server.cc:4692] "Started HTTPService"', flush=True)
    if "hang" not in server.modes:
        server.ready = True
    if "crash" in server.modes:
        threading.Timer(float(server.modes["crash"]), lambda: os._exit(139)).start()
    ended.wait()
    deadline = time.monotonic() + server.flags.get("exit-timeout-secs", 30)
    while INFLIGHT and time.monotonic() < deadline:
        time.sleep(0.01)
    server.leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
