"""Text without secrets: tokens, keys, passwords, user names in paths, addresses and host names of the network."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "[removed]"
ADDRESS, USER = "[address]", "[user]"

_HIDDEN_KEY = (
    r"(?:[\w-]*(?:token(?!s)|secret|passw(?:or)?d|passphrase|credential|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|auth[_-]?key|license[_-]?key|signature|cookie)s?)"
)
_RULES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?)(?:(?:bearer|basic|token)\s+)?[^\s\"',]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(rf"(?i)(\b{_HIDDEN_KEY}[\"']?\s*[:=]\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;}}\"']+)"), rf"\1{MASK}"),
    (re.compile(rf"(?i)(--{_HIDDEN_KEY}[ =])(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"']+)"), rf"\1{MASK}"),
    (re.compile(r"\b(?:hf|sk|pk|rk|gh[pousr]|glpat|xox[abprs]|nvapi|dckr_pat|pypi)[_-][\w-]{12,}"), MASK),
    (re.compile(r"\bgithub_pat_\w{20,}"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), MASK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*"), MASK),
    (re.compile(r"(?<![\w+/=])[A-Za-z0-9+/]{64,}={0,2}(?![\w+/=])"), MASK),
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^\s/@:]+(?::[^\s/@]*)?@"), rf"\1{MASK}@"),
    (re.compile(r"(?i)([?&](?:[\w-]*(?:token|key|sig|signature|secret|password)|x-amz-[\w-]+)=)[^\s&\"']+"),
     rf"\1{MASK}"),
    (re.compile(r"(/(?:home|Users|var/home|export/home|nfs/home)/)[^/\s\"':,)]+"), rf"\1{USER}"),
    (re.compile(r"(?i)\b((?:user|username|login|user_name|logname)[\"']?\s*[:=]\s*[\"']?)[^\s,;\"'}]+"), rf"\1{USER}"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), ADDRESS),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE), ADDRESS),
)  # fmt: skip
_HIDDEN_NAME = re.compile(rf"(?i)^{_HIDDEN_KEY}$|^(?:auth|authorization|pat)$")
_VERSION_KEYS = re.compile(r"(?i)version|release")


_ADDRESS = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{2,}(?<!:))(?![\w.])")
_VERSION_BEFORE = re.compile(r"(?i)(?:version|got|release|tensorrt|cuda|cudnn|driver|==|>=|<=)[ :=v]*$")


def redact(text: str, names: Sequence[str] = ()) -> str:
    """The text without secrets; ``names`` (user and host names of this machine) go too, wherever they stand alone."""
    for expression, by in _RULES:
        text = expression.sub(by, text)
    text = _ADDRESS.sub(_address, text)
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 2 and name not in ("root", "localhost"):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", USER, text)
    return text


def _address(found: re.Match[str]) -> str:
    """The mask for an address of the network; versions, times and addresses of every machine stay."""
    before = found.string[max(0, found.start() - 24) : found.start()]
    try:
        address = ipaddress.ip_address(found[0])
    except ValueError:
        return found[0]
    if address.is_loopback or address.is_unspecified or _VERSION_BEFORE.search(before):
        return found[0]
    return ADDRESS


def redact_document(value: Any, names: Sequence[str] = ()) -> Any:
    """The JSON value without secrets: what stands under a secret's name is removed whole."""
    if isinstance(value, str):
        return redact(value, names)
    if isinstance(value, Mapping):
        return {key: _of_key(str(key), each, names) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [redact_document(each, names) for each in value]
    return value


def _of_key(key: str, value: Any, names: Sequence[str]) -> Any:
    if _HIDDEN_NAME.match(key) and isinstance(value, str):
        return MASK
    if _VERSION_KEYS.search(key) and isinstance(value, str):
        return value
    return redact_document(value, names)
