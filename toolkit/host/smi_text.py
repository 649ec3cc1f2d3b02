"""Pasted terminal text made plain, and the two ways to refuse it."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from toolkit.errors import ToolkitError
from toolkit.units import MIB

MAX_TEXT = MIB
# Colour and underline codes, also as they look once the escape character was lost (``[4m``) or printed (``^[[4m``).
_ESCAPES = re.compile(
    r"(?:\x1b|\^\[|\u241b|\\e|\\x1b|\\033)\[[0-9;?]*[A-Za-z]|\x9b[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[()][A-Z0-9]|\x1b[=>78cM]|\[\d{1,2}(?:;\d{1,2})*m"
)
_INVISIBLE = re.compile("[\u200b-\u200f\u2060\ufeff\u00ad]")
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_CONTINUED = re.compile(r"[\\`^]\n\s*(?=-|nvidia-smi\b)")
_TYPED = re.compile(r"nvidia-smi(\.exe)?[\"']?\s+(-|topo\b|mig\b|[|>])|(^|[$#%>]\s*|sudo\s+)nvidia-smi(\.exe)?\s*$")
_WHO = r"\[[^\]]*\]|[\w.+-]+@[\w.-]+(?:[: ][^#$%>]*)?"
_PROMPT = re.compile(
    rf"(?:\(.*\)\s*)?(?:(?:{_WHO})\s*[#$%>](?:\s.*)?|(?:PS )?(?:[A-Z]:\\[^>]*>)|(?:bash-[\d.]+)?[#$%>\u276f])"
)
_WATCH = re.compile(r"Every \d+(?:[.,]\d+)?s: ")
_WARNING = re.compile(r"WARNING: ")


@dataclass(frozen=True)
class Paste:
    """``output``: the lines that a program printed; ``commands``: the lines that were typed."""

    output: list[str]
    commands: list[str]


def ambiguous(kind: str, reason: str) -> ToolkitError:
    """The refusal of a text that can be read in more than one way."""
    return ToolkitError(
        f"This text can't be read in one way only: {reason}.",
        hint="Save the program's output to a file with '>' instead of copying it from a terminal.",
        code="ambiguous_text",
        kind=kind,
        verdict="refuse",
        reason=reason,
    )


def foreign(saw: str) -> ToolkitError:
    """The refusal of a text that is none of the three kinds; ``saw`` says what it looks like."""
    return ToolkitError(
        f"This is none of the texts that can be read; it looks like {saw}.",
        hint="Give it the output of 'nvidia-smi topo -m', 'nvidia-smi -L' or 'nvidia-smi --query-gpu=… --format=csv'.",
        code="foreign_text",
        saw=saw,
    )


def decoded(data: bytes) -> str:
    """The text of a file, also as PowerShell's ``>`` writes it; what is no text becomes U+FFFD."""
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if wide else "utf-8", errors="replace")


def read_paste(text: str) -> Paste:
    """What a program printed, without prompts, warnings of the driver, escape codes, fences and quote marks; tabs stay.

    Raises: ToolkitError when it is over 1 MiB or holds control characters, as a binary file does.
    """
    if len(text) > MAX_TEXT:
        raise foreign(f"a text of {len(text)} characters, far longer than any of them")
    plain = _INVISIBLE.sub("", _ESCAPES.sub("", _SPACES.sub(" ", _LINE_ENDS.sub("\n", text))))
    if re.search(r"[\x00-\x08\x0e-\x1f\x7f]", plain):
        raise foreign("a binary file")
    lines = _unquoted(_CONTINUED.sub(" ", plain).split("\n"))
    return Paste(
        output=[line for line in lines if not _is_around(line.strip())],
        commands=[line for line in lines if _TYPED.search(line.strip())],
    )


def _unquoted(lines: list[str]) -> list[str]:
    """Lines of a quoted mail or of a comment without the marks."""
    filled = [line for line in lines if line.strip()]
    for mark in (">", "#"):
        if filled and all(line.startswith(mark) for line in filled):
            return [line[2:] if line.startswith(f"{mark} ") else line[1:] for line in lines]
    return lines


def _is_around(line: str) -> bool:
    """Whether a line is none of the output: a fence, a prompt, a command, a warning, the head of ``watch``."""
    if line.startswith(("```", "~~~")):
        return True
    return bool(_TYPED.search(line) or _PROMPT.fullmatch(line) or _WATCH.match(line) or _WARNING.match(line))


def with_cuts(lines: list[str]) -> list[str]:
    """Filled lines; those that end before the widest one end in a blank, as no terminal cut a word there."""
    filled = [line for line in lines if line.strip()]
    width = max((len(line.expandtabs(8)) for line in filled), default=0)
    return [line if len(line.expandtabs(8)) == width else f"{line} " for line in filled]


def excerpt(text: str) -> str:
    """At most 60 characters of a text, for a message."""
    short = " ".join(text.split())
    return short if len(short) <= 60 else short[:59] + "…"
