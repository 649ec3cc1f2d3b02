"""One line of a log: who wrote it, how serious the writer thought it was, and what it says."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How serious a line is in the eyes of its writer; a line without a word about it counts as ``ERROR``."""

    INFO = 0
    WARNING = 1
    ERROR = 2


_LETTERS = {"E": Level.ERROR, "F": Level.ERROR, "C": Level.ERROR, "W": Level.WARNING}

_LEVEL = re.compile(
    r"\[TensorRT-LLM\]\[(?P<trtllm>ERROR|WARNING|INFO|DEBUG|VERBOSE|TRACE)\]"
    r"|\[(?P<bracket>[EWIVDF])\](?=\s|$)"
    r"|(?:^|[\s|:\[])(?P<glog>[EWIF])\d{3,8} \d\d:\d\d"
    r"|\d: (?P<tensorflow>[EWIF]) (?=[\w/]+\.cc)"
    r"|NCCL (?P<nccl>INFO|WARN|TRACE)\b"
    r"|(?<![\w\"'])(?P<word>ERROR|WARNING|WARN|INFO|DEBUG|CRITICAL|FATAL|TRACE)(?=[\s:\]|(;,-]|$)"
    r"|(?i:(?:level(?:name)?|lvl|severity)[\"']?[=:]\s*[\"']?(?P<key>error|warn(?:ing)?|info|debug|critical|fatal))"
    r"|\b(?P<python>User|Future|Deprecation|Runtime|Resource|Import)Warning: "
)

_GOES_ON = re.compile(
    r"\b(?:retrying|will retry|trying to resume|ignoring this)\b|ignore import error|\(ignored\)|: ignored\.",
    re.IGNORECASE,
)

_RANK = re.compile(
    r"\[\d+,(?P<mpi>\d+)\]<std(?:out|err)>:"
    r"|\bRANK (?P<trtllm>\d+)\]"
    r"|[ _](?P<tp>(?:DP\d+ ?_?)?TP\d+)(?:_EP\d+)?[ \])]"
    r"|\[rank(?P<torch>\d+)\]"
    r"|^(?P<srun>\d{1,4}): (?=\S)"
)

_PREFIX = re.compile(
    r"(?:"
    r"\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"(?: (?:DP\d+ )?(?:TP|PP)\d+(?: EP\d+)?)?\]?"
    r"(?: (?:stdout|stderr) [FP](?= |$))?[ \t]?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./@-]+(?:\[\d+\])?: "
    r"|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] ?"
    r"|[\w.-]+[-_]\d+ +\| ?"
    r"|#\d+ (?:\d+\.\d+ ?)?"
    r"|\[\d+,\d+\]<std(?:out|err)>:"
    r"|\d{1,4}: (?=\S)"
    r"|\((?:\w+ )?\w*[ ]?pid=\d+(?:, ip=[\w.]+)?\) ?"
    r"|(?:ERROR|WARNING|WARN|INFO|DEBUG|CRITICAL|FATAL)\b:? +(?:\d\d-\d\d \d\d:\d\d:\d\d )?"
    r"(?:\[?[\w./-]+\.\w+:\d+\]:? ?)?"
    r"|\[TensorRT-LLM\]\[\w+\] ?|\[TRT-LLM\] ?|\[TRT\] ?|\[_torch\] ?|\[RANK \d+\] ?|\[[EWIVDF]\] ?|\[rank\d+\]:? ?"
    r"|\[?[EWIF]\d{3,8} \d\d:\d\d:\d\d(?:\.\d+)?(?: +\d+)? +[\w./-]+\.\w+:\d+\] "
    r")"
)  # fmt: skip

_QUOTE_KEYS = ("prompt", "content", "question", "query", "input")
_DOCKER_JSON = re.compile(r'^\{(?=.*"stream":")(?:.*?,)?"log":"(?P<text>(?:\\.|[^"\\])*?)(?:\\n)?"[,}]')
_QUOTED = re.compile(
    r"""(?P<key>\b(?:prompts?|content|question|query|user_input|input_text|(?<=ReqInput\()text)["']?\s*[:=]\s*)"""
    r"""(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).|(?<=\w)(?P=quote)(?=\w))*)(?P<end>(?P=quote)|$)""",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True)
class Line:
    """``message`` is what stands after the prefixes, and begins there at ``body``; users' words are blanked in it.

    Positions are those of ``message``. ``untold`` is how serious it is where its writer has no word about that.
    """

    number: int
    text: str
    body: int
    message: str
    untold: Level = Level.ERROR

    def told(self, at: int) -> Level | None:
        """The writer's last word about seriousness before position ``at``; None: there is none."""
        last = last_of(_LEVEL.finditer(self.text, 0, max(self.body + at, 1)))
        return _level_of(last) if last else None

    def level(self, at: int) -> Level:
        """How serious the writer thinks it is, by what stands before ``at``; no error where it says that it goes on."""
        told = self.told(at)
        level = self.untold if told is None else told
        return Level.WARNING if level == Level.ERROR and _GOES_ON.search(self.message) else level

    def rank(self, at: int) -> str | None:
        """The rank that wrote position ``at``: ``1`` or ``TP1``."""
        last = last_of(_RANK.finditer(self.text, 0, max(self.body + at, 1)))
        return next(value for value in last.groups() if value) if last else None

    def sentence(self, at: int) -> str:
        """What is written around position ``at``: between carriage returns, without prefixes."""
        end = self.message.find("\r", at)
        found = self.message[self.message.rfind("\r", 0, at) + 1 : end if end >= 0 else len(self.message)]
        return clip(found[body_start(found) :].strip())


def last_of(found: Iterator[re.Match[str]]) -> re.Match[str] | None:
    """The last of the matches."""
    return next(iter(deque(found, maxlen=1)), None)


def clip(text: str, limit: int = 1000) -> str:
    """The text, with its middle left out where it is longer than ``limit`` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … {text[-half:]}"


def _level_of(found: re.Match[str]) -> Level:
    if found["python"]:
        return Level.WARNING
    if found["nccl"] == "WARN":
        return Level.ERROR  # NCCL has no word for errors: it warns, and gives up
    word = next(value for value in found.groups() if value).upper()
    return _LETTERS.get(word[0], Level.INFO)


def body_start(text: str) -> int:
    """Where the message begins after time stamps, tags of containers and ranks, and logger prefixes."""
    at = 0
    for _ in range(12):
        found = _PREFIX.match(text, at)
        if not found or found.end() == at:
            return at
        at = found.end()
    return at


def make(number: int, text: str) -> Line:
    """The line as it is to be read: unwrapped from container JSON, and blank where a user's words are quoted."""
    text = text.rstrip("\r\n")
    if text.startswith("{") and '"log":"' in text and (wrapped := _DOCKER_JSON.match(text)):
        text = _unescape(wrapped["text"])
    if quotes(text):
        text = _QUOTED.sub(_blank, text)
    body = body_start(text)
    return Line(number, text, body, text[body:])


def quotes(text: str) -> bool:
    """True when the line may hold a user's words."""
    low = text.lower()
    return any(word in low for word in _QUOTE_KEYS)


def open_quote(text: str) -> str | None:
    """The quotation mark of a user's text that goes on in the next line; None: there is none."""
    if not quotes(text):
        return None
    last = last_of(_QUOTED.finditer(text))
    return last["quote"] if last and not last["end"] else None


def _blank(found: re.Match[str]) -> str:
    return found["key"] + found["quote"] + " " * len(found["text"]) + found["end"]


def _unescape(text: str) -> str:
    return text.replace('\\"', '"').replace("\\t", "\t").replace("\\r", "\r").replace("\\\\", "\\")
