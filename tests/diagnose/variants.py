"""Logs that say the same as a given one: other numbers, symbols, paths, prefixes, noise, line ends."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

NOISE = (
    rb"""INFO 01-02 03:04:05 [metrics.py:12] heartbeat
2025-01-02 03:04:05.123456: I external/local_xla/x.cc:998] successful NUMA node read from SysFS had negative value
/opt/venv/lib/python3.12/site-packages/x/y.py:12: FutureWarning: `foo` is deprecated.
[TensorRT-LLM][WARNING] Parameter bar cannot be read from json:
node01:700:700 [0] NCCL INFO NET/Plugin : libnccl-net.so: cannot open shared object file
I0101 10:00:00.123456 7 server.cc:1] "nothing of interest"
"""
).split(b"\n")  # fmt: skip
_SYMBOLS = (
    b"_ZN3c105ErrorC2ENS_14SourceLocationESs", b"_ZN3c104cuda9SetDeviceEa", b"_ZNK2at6Tensor7is_cudaEv",
    b"_ZN5torch8autograd13VariableHooks4dataERKN2at6TensorE", b"_ZNK3c1010TensorImpl4sizeEl",
    b"_ZN2at4_ops6narrow4callERKNS_6TensorElN3c106SymIntES6_",
)  # fmt: skip
_OWN_SYMBOLS = (b"_ZN12tensorrt_llm6common14throwCudaErrorEv", b"_ZNK12tensorrt_llm8executor8Response8hasErrorEv")

Change = Callable[[bytes, random.Random], bytes]


def other_numbers(log: bytes, turn: random.Random) -> bytes:
    """Other process numbers, addresses, line numbers of sources, times and sizes behind the decimal point."""
    log = re.sub(rb"pid[= ]\d+", lambda _: b"pid=%d" % turn.randint(10, 99_999), log)
    log = re.sub(rb"0x7f[0-9a-f]{10}", lambda _: b"0x7f%010x" % turn.getrandbits(40), log)
    log = re.sub(rb"(\.(?:cpp|cc|py|h):)\d+", lambda found: found[1] + b"%d" % turn.randint(1, 3000), log)
    return re.sub(rb", line \d+, in ", lambda _: b", line %d, in " % turn.randint(1, 3000), log)


def other_versions(log: bytes, turn: random.Random) -> bytes:
    """Other TensorRT version pairs, compute capabilities, CUDA library numbers and ports."""
    pair = turn.sample(range(200, 300), 2)
    log = re.sub(rb"Current Version: \d\d+, Serialized Engine Version: \d+",
                 b"Current Version: %d, Serialized Engine Version: %d" % tuple(pair), log)  # fmt: skip
    log = re.sub(
        rb"expecting compute [\d.]+ got compute [\d.]+",
        b"expecting compute %s got compute %s" % tuple(turn.sample([b"7.5", b"8.0", b"8.9", b"9.0", b"12.0"], 2)),
        log,
    )
    log = re.sub(rb"libcudart\.so\.\d+", b"libcudart.so.%d" % turn.randint(11, 14), log)
    return re.sub(rb"0\.0\.0\.0:8001", b"0.0.0.0:%d" % turn.randint(1024, 65_000), log)


def other_symbols(log: bytes, turn: random.Random) -> bytes:
    """Other mangled names of the same namespaces."""
    torch, own = turn.choice(_SYMBOLS), turn.choice(_OWN_SYMBOLS)
    log = re.sub(rb"undefined symbol: _ZN?K?(?:3c10|2at|5torch)\w+", b"undefined symbol: " + torch, log)
    return re.sub(rb"undefined symbol: _ZN?K?12tensorrt_llm\w+", b"undefined symbol: " + own, log)


def other_paths(log: bytes, turn: random.Random) -> bytes:
    """Other folders of environments, models and engines."""
    site = turn.choice([b"/home/u/.venv/lib/python3.12/site-packages", b"/opt/conda/lib/python3.11/site-packages"])
    log = log.replace(b"/usr/local/lib/python3.12/dist-packages", site).replace(
        b"/opt/venv/lib/python3.10/site-packages", site
    )
    return log.replace(b"/models/", b"/mnt/weights-%d/" % turn.randint(1, 99)).replace(b"/engines/", b"/data/engines/")


def prefixed(log: bytes, turn: random.Random) -> bytes:
    """A container's or the journal's prefix before every line."""
    prefix = turn.choice([
        lambda i: b"2025-03-04T05:06:%02d.%09dZ " % (i % 60, i),
        lambda i: b"2025-03-04T05:06:%02d.%09dZ stderr F " % (i % 60, i),
        lambda i: b"server-1  | ",
        lambda i: b"Mar  4 05:06:07 node01 server[77]: ",
    ])  # fmt: skip
    lines = log.split(b"\n")
    if not log.endswith(b"\n"):
        return b"\n".join(prefix(i) + line for i, line in enumerate(lines))
    return b"\n".join(prefix(i) + line for i, line in enumerate(lines[:-1])) + b"\n"


def noisy(log: bytes, turn: random.Random) -> bytes:
    """Harmless lines before the first line, and some with bytes that are not UTF-8."""
    noise = [turn.choice(NOISE) for _ in range(turn.randint(1, 200))] + [b"\xff\xfe\xc3( caf\xe9"]
    return b"\n".join(noise) + b"\n" + log


def long_line(log: bytes, turn: random.Random) -> bytes:
    """A line of two megabytes before everything else."""
    return b'{"weight_map": "' + b"model.layers.0.q_proj.weight " * 70_000 + b'"}\n' + log


def carriage_returns(log: bytes, turn: random.Random) -> bytes:
    """Line ends of another system."""
    return log.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def coloured(log: bytes, turn: random.Random) -> bytes:
    """Colours around every line."""
    return b"\n".join(b"\x1b[3%dm%s\x1b[0m" % (turn.randint(1, 6), line) if line else line for line in log.split(b"\n"))


def without_last_line_feed(log: bytes, turn: random.Random) -> bytes:
    return log.rstrip(b"\n")


CHANGES: tuple[Change, ...] = (
    other_numbers, other_versions, other_symbols, other_paths, prefixed, noisy, carriage_returns, coloured,
    without_last_line_feed,
)  # fmt: skip


def variant(log: bytes, seed: int) -> bytes:
    """One variant of the log: one to four changes, chosen by ``seed``; one in fifty also gets a very long line."""
    turn = random.Random(seed)
    for change in turn.sample(CHANGES, turn.randint(1, 4)):
        log = change(log, turn)
    return long_line(log, turn) if seed % 50 == 0 else log


def added_lines(log: bytes, changed: bytes) -> int:
    """How many lines stand before the first line of ``log`` in its variant."""
    return changed.count(b"\n") - log.count(b"\n") + (log.endswith(b"\n") and not changed.endswith(b"\n"))
