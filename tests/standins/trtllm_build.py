"""A stand-in for ``trtllm-build`` of one release: strict about its command line, and able to fail as real ones do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from packaging.version import Version

TABLES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("trtllm_build_options.json").read_text(encoding="utf-8")
)
# Options that the named release may or may not have; ``strict`` leaves them out.
UNSURE = {"0.12.0": ("--kv_cache_type", "--tp_size", "--pp_size", "--cp_size")}
WORDS = {"enable": True, "disable": False}
SOFT_FROM = Version("0.19.0")  # from here on the builder changes flags and warns


class RefusedError(Exception):
    """What argparse refuses: exit status 2."""


def table(release: str, strict: bool = False) -> dict[str, dict[str, Any]]:
    """The options of a release; between two that were read, what both have."""
    version = Version(release)
    older = max((each for each in TABLES if Version(each) <= version), key=Version)
    newer = min((each for each in TABLES if Version(each) >= version), key=Version, default=older)
    found = {name: both(spec, TABLES[newer][name]) for name, spec in TABLES[older].items() if name in TABLES[newer]}
    gone = UNSURE.get(release, ()) if strict else ()
    return {name: spec for name, spec in found.items() if name not in gone}


def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    if "choices" in one and "choices" in other:
        return {**one, "choices": [word for word in one["choices"] if word in other["choices"]]}
    return one


def parse(argv: list[str], options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Option to value, without dashes; raises RefusedError."""
    names = {alias: name for name, spec in options.items() for alias in (name, *spec.get("aliases", ()))}
    found: dict[str, Any] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word not in names:
            raise RefusedError(f"unrecognized arguments: {word}")
        spec = options[names[word]]
        if spec.get("kind") == "flag":
            found[names[word][2:]] = True
            continue
        values = take(rest, word, spec)
        found[names[word][2:]] = values if spec.get("many") else values[0]
    return found


def take(rest: list[str], word: str, spec: dict[str, Any]) -> list[str]:
    values: list[str] = []
    while rest and not rest[0].startswith("--") and (spec.get("many") or not values):
        values.append(rest.pop(0))
    if not values:
        raise RefusedError(f"argument {word}: expected one argument")
    for value in values:
        if "choices" in spec and value not in spec["choices"]:
            raise RefusedError(f"argument {word}: invalid choice: '{value}' (choose from {', '.join(spec['choices'])})")
        if spec.get("kind") == "int" and not value.lstrip("-").isdigit():
            raise RefusedError(f"argument {word}: invalid int value: '{value}'")
    return values


def plugin_config(args: dict[str, Any], options: dict[str, dict[str, Any]], dtype: str) -> dict[str, Any]:
    """The plugins as config.json keeps them: truths, types, None, numbers."""
    told = {name[2:]: args.get(name[2:], spec["default"]) for name, spec in options.items() if "default" in spec}
    config = {
        name: WORDS.get(value, value) if is_truth(options, name) else typed(value, dtype)
        for name, value in told.items()
    }
    config["paged_kv_cache"] = kv_type(args) == "paged"
    return config


def is_truth(options: dict[str, dict[str, Any]], name: str) -> bool:
    return set(options[f"--{name}"].get("choices", ())) == set(WORDS)


def typed(value: Any, dtype: str) -> Any:
    if value == "disable":
        return None
    return dtype if value == "auto" else int(value) if str(value).isdigit() else value


def kv_type(args: dict[str, Any]) -> str:
    told = args.get("kv_cache_type")
    paged = WORDS.get(str(args.get("paged_kv_cache")))
    if told is not None and paged is not None:
        assert (told == "paged") == paged, "kv_cache_type and paged_kv_cache disagree"
    return str(told or ("continuous" if paged is False else "paged"))


def constrain(config: dict[str, Any], args: dict[str, Any], checkpoint: dict[str, Any], release: str) -> None:
    """What the builder asserts, and what it changes with a warning."""
    version, quantization = Version(release), checkpoint.get("quantization") or {}
    kv, algo = quantization.get("kv_cache_quant_algo"), quantization.get("quant_algo")
    tp_size = (checkpoint.get("mapping") or {}).get("tp_size", 1)
    if config.get("multiple_profiles") and "opt_num_tokens" in args:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set")
    if args.get("gather_context_logits") and int(args.get("max_draft_len", 0)) > 0:
        raise RuntimeError("gather_context_logits with max_draft_len")
    paged = config["use_paged_context_fmha"]
    if paged and kv and version < SOFT_FROM and (version.release[:2] == (0, 9) or kv == "INT8" or algo != "FP8"):
        raise RuntimeError(f"paged context FMHA does not work with {kv} KV cache")
    if version >= SOFT_FROM:
        soften(config, kv, algo)
    elif paged and kv == "FP8" and not config.get("use_fp8_context_fmha"):
        warn(config, "use_fp8_context_fmha", True)
    if config.get("reduce_fusion") and tp_size == 1:
        warn(config, "reduce_fusion", False)
    if config.get("user_buffer") and not config.get("reduce_fusion"):
        warn(config, "user_buffer", False)


def soften(config: dict[str, Any], kv: str | None, algo: str | None) -> None:
    fp8 = algo in ("FP8", "W4A8_AWQ", "NVFP4")
    if config["use_paged_context_fmha"] and (not config["context_fmha"] or kv == "INT8" or config.get("streamingllm")):
        warn(config, "use_paged_context_fmha", False)
    if config["use_fp8_context_fmha"] and (not config["context_fmha"] or not fp8):
        warn(config, "use_fp8_context_fmha", False)
        if kv == "FP8" and config["use_paged_context_fmha"]:
            warn(config, "use_paged_context_fmha", False)
    if config["use_paged_context_fmha"] and config["use_fp8_context_fmha"] and kv != "FP8":
        warn(config, "use_fp8_context_fmha", False)
    if config["use_paged_context_fmha"] and kv == "FP8" and not config["use_fp8_context_fmha"]:
        warn(config, "use_fp8_context_fmha", True)


def warn(config: dict[str, Any], name: str, value: bool) -> None:
    config[name] = value
    log("W", f"{name} is set to {value}")


def log(level: str, text: str) -> None:
    print(f"[01/01/2026-00:00:00] [TRT-LLM] [{level}] {text}", flush=True)


def engine_config(
    args: dict[str, Any], plugins: dict[str, Any], checkpoint: dict[str, Any], release: str
) -> dict[str, Any]:
    build = {name: int(args[name]) for name in args if name.startswith("max_") and str(args[name]).isdigit()}
    if Version(release) >= Version("0.12.0"):
        build["kv_cache_type"] = kv_type(args).upper()
    return {"version": release, "pretrained_config": checkpoint, "build_config": {**build, "plugin_config": plugins}}


def legacy(config: dict[str, Any]) -> dict[str, Any]:
    """The layout before engines said their release."""
    model, build = config["pretrained_config"], dict(config["build_config"])
    plugins = build.pop("plugin_config")
    old = {
        "name": model["architecture"], "precision": model["dtype"], **build,
        "tensor_parallel": model["mapping"]["tp_size"], "pipeline_parallel": model["mapping"]["pp_size"],
    }  # fmt: skip
    return {"builder_config": old, "plugin_config": plugins}


def main(argv: list[str], settings: dict[str, Any]) -> int:
    release, fail = settings["release"], settings.get("fail")
    options = table(release, bool(settings.get("strict")))
    try:
        args = parse(argv, options)
        if "checkpoint_dir" not in args:
            raise RefusedError("the following arguments are required: --checkpoint_dir")
    except RefusedError as refused:
        print(f"usage: trtllm-build [-h]\ntrtllm-build: error: {refused}", file=sys.stderr)
        return 2
    print(f"[TensorRT-LLM] TensorRT-LLM version: {release}", flush=True)
    checkpoint = json.loads((Path(args["checkpoint_dir"]) / "config.json").read_text())
    plugins = plugin_config(args, options, checkpoint["dtype"])
    constrain(plugins, args, checkpoint, release)
    config = engine_config(args, plugins, checkpoint, release)
    spoil(config, fail)
    return write(Path(args["output_dir"]), config, args, fail)


def spoil(config: dict[str, Any], fail: str | None) -> None:
    """What a builder does that was told otherwise."""
    build = config["build_config"]
    if fail == "fmha_left_on":
        build["plugin_config"]["context_fmha"] = True
    if fail == "switched":
        name = "use_paged_context_fmha"
        warn(build["plugin_config"], name, not build["plugin_config"][name])
    if fail == "silent_config":
        del build["plugin_config"]["context_fmha"]
    if fail == "lower_limits":
        build["max_input_len"] //= 2


def write(folder: Path, config: dict[str, Any], args: dict[str, Any], fail: str | None) -> int:
    """config.json first, as the real one does, then an engine for each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    if fail in ("hang", "hang_with_children"):
        return hang(folder, fail)
    if fail == "gpu_memory":
        log("W", "Requested amount of GPU memory (21474836480 bytes) could not be allocated.")
    if fail in ("no_engine_exit_0", "no_engine_exit_1", "gpu_memory"):
        log("E", "Engine building failed, please check the error log.")
    if fail != "no_config":
        (folder / "config.json").write_text(json.dumps(legacy(config) if fail == "legacy" else config, indent=4))
        log("I", f"Config saved to {folder / 'config.json'}.")
    if fail in ("no_engine_exit_0", "no_config"):
        return 0
    if fail in ("no_engine_exit_1", "gpu_memory"):
        print("AttributeError: 'NoneType' object has no attribute 'save'", file=sys.stderr)
        return 1
    return engines(folder, config["pretrained_config"]["mapping"]["world_size"], args, fail)


def engines(folder: Path, world_size: int, args: dict[str, Any], fail: str | None) -> int:
    for rank in range(world_size):
        (folder / f"rank{rank}.engine").write_bytes(b"" if fail == "empty_rank" else f"engine {rank}".encode())
        if status := after_rank(fail):
            return status
    if fail == "fell_back":
        print("[TensorRT-LLM][WARNING] Fall back to unfused MHA because of unsupported head size 96 in sm_75.")
    with Path(args.get("output_timing_cache") or args.get("timing_cache") or "model.cache").open("ab") as file:
        file.write(b"timings\n")
    return 0


def after_rank(fail: str | None) -> int:
    if fail == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fail == "killed_137":
        print("line 1: 41317 Killed trtllm-build", flush=True)
        return 137
    if fail == "disk_full":
        print("OSError: [Errno 28] No space left on device: 'rank0.engine'", flush=True)
        return 1
    return 1 if fail == "dies" else 0


def hang(folder: Path, fail: str) -> int:
    pids = [os.getpid()]
    if fail == "hang_with_children":
        for _ in range(2):
            worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
            pids.append(worker.pid)
    part = folder / "pids.part"
    part.write_text(" ".join(map(str, pids)))
    part.rename(Path(os.environ.get("HOME", str(folder))) / "hanging")
    time.sleep(600)
    return 0
