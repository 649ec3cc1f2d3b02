"""What must not be shown of a launch: values of secret variables and options, wherever they stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
_ANYWHERE = {"secret", "secrets", "password", "passwd", "passphrase", "credential", "credentials", "apikey"}
_AT_THE_END = {"token", "pat", "auth"}
_BEFORE_KEY = {"api", "access", "private", "secret", "signing", "encryption", "auth", "hub"}
# Of a variable more counts than of an option: options such as --sort-key are common, variables of that kind are not.
_IN_A_VARIABLE = {"token", "key", "keys", "pwd", "pat", "auth", "cookie"}
_USER_IN_URL = re.compile(r"(?<=://)[^\s/@:]*:[^\s/@]+(?=@)")
_SHORT = 4  # a secret of so few characters would take words and numbers out of everything


def is_secret(name: str) -> bool:
    """Whether an option of this name holds something that must not be shown."""
    words = _words(name)
    if not words:
        return False
    ends_in_key = words[-1] == "key" and (len(words) == 1 or words[-2] in _BEFORE_KEY)
    return bool(_ANYWHERE & set(words)) or words[-1] in _AT_THE_END or ends_in_key


def is_secret_variable(name: str) -> bool:
    """Whether an environment variable of this name does."""
    return is_secret(name) or bool(_IN_A_VARIABLE & set(_words(name)))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def masked_env(env: Mapping[str, str]) -> dict[str, str]:
    """The variables to be shown: values of secret ones masked, and user and password of URLs in the others."""
    return {name: MASK if is_secret_variable(name) else _without_user(value) for name, value in env.items()}


def _without_user(text: str) -> str:
    return _USER_IN_URL.sub(MASK, text)


def masked_argv(argv: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """The arguments with the values of secret options masked, ``--api-key X`` and ``--api-key=X`` alike.

    Values of secret variables of ``env`` are masked wherever they stand.
    """
    shown: list[str] = []
    for i, argument in enumerate(argv):
        option, equals, _ = argument.partition("=")
        before = argv[i - 1] if i else ""
        if equals and option.startswith("-") and is_secret(option):
            shown.append(f"{option}={MASK}")
        elif before.startswith("-") and "=" not in before and is_secret(before) and not argument.startswith("-"):
            shown.append(MASK)
        else:
            shown.append(_without_user(argument))
    secrets = secret_values(env or {})
    return [masked(argument, secrets) for argument in shown]


def secret_values(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values that must not be shown, the longest first; very short ones are left out."""
    found = {value for name, value in env.items() if is_secret_variable(name) and len(value) > _SHORT}
    found |= {match[0] for value in env.values() for match in _USER_IN_URL.finditer(value)}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def masked(text: str, secrets: Iterable[str]) -> str:
    """The text with these values masked."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
