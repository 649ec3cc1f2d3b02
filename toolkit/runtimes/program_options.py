"""``options:`` of a service as words for a program's parser, checked against what its release defines. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.errors import ManyFaultsError, ToolkitError
from toolkit.facts.options import Option, OptionTable
from toolkit.names import did_you_mean
from toolkit.runtimes.words import BadValueError, words_of

# Why an option is not a person's to set, and what to write instead, where programs agree.
ONE_NODE = "coexist runs one instance on one node; start a second service for the next."
PLAIN_HTTP = "coexist's own requests are plain HTTP without a key; put a gateway in front of it."
BOUND = "The plan binds the process before it starts."
NO_FILE = "Write the options themselves: a file could overrule the plan."


def service_keys(**options: str) -> dict[str, str]:
    """For each key of a service the program's option for the same thing: what to write instead, by option."""
    return {option: f"Write it as the service's '{key}'." for key, option in options.items()}


def words(
    service: str, options: Mapping[str, Any], table: OptionTable | None, owned: Mapping[str, str]
) -> tuple[str, ...]:
    """The words of these options, in the order they were written; ``table`` None: nothing tells what the release has.

    ``owned``: options (with dashes) that are not a person's to set, each with what to write instead.

    Raises: ManyFaultsError with every option that the program does not have, would refuse, or that the plan decides.
    """
    made: list[str] = []
    faults: list[ToolkitError] = []
    for key, value in options.items():
        found = _words_or_fault(f"services.{service}.options.{key}", key, value, table, owned)
        if isinstance(found, ToolkitError):
            faults.append(found)
        else:
            made += found
    if faults:
        raise ManyFaultsError(tuple(faults))
    return tuple(made)


def value_of(options: Mapping[str, Any], *names: str) -> Any:
    """What a service sets one of these options to (names without dashes in front); None: nothing."""
    wanted = {_plain(name) for name in names}
    return next((value for key, value in options.items() if _plain(key) in wanted), None)


def count_of(options: Mapping[str, Any], *names: str) -> int | None:
    """The whole number from 1 that one of these options is set to; None: none, or another form."""
    value = value_of(options, *names)
    return value if type(value) is int and value >= 1 else None


def _words_or_fault(
    where: str, key: str, value: Any, table: OptionTable | None, owned: Mapping[str, str]
) -> tuple[str, ...] | ToolkitError:
    try:
        return tuple(_words(where, key, value, table, owned))
    except ToolkitError as fault:
        return fault


def _words(where: str, key: str, value: Any, table: OptionTable | None, owned: Mapping[str, str]) -> Iterator[str]:
    option = _find(where, key, table)
    names = {_plain(name) for name in (option.name, *option.aliases)}
    for name, instead in owned.items():
        if _plain(name) in names:
            raise ToolkitError(f"'{key}' is not set here", where, instead, code="option_owned")
    if isinstance(value, bool) and option.kind in (None, "flag"):
        yield from _switched(option, value)
        return
    try:
        found = words_of(option, value, loose=True)
    except BadValueError as bad:
        raise ToolkitError(f"'{key}' {bad}", where, bad.hint, code="bad_option") from None
    yield from (option.name, *found)


def _find(where: str, key: str, table: OptionTable | None) -> Option:
    name = "--" + _plain(key)
    if table is None:
        return Option(name, None)
    spelt = (name, name.replace("-", "_").replace("__", "--", 1), name[1:])
    found = next((option for each in spelt if (option := table.find(each)) is not None), None)
    if found is None:
        known = (each.removeprefix("--") for each in table.options if each.startswith("--"))
        hint = did_you_mean(_plain(key), known) or f"See the options of {table.command} {table.release}."
        what = f"{table.command} {table.release} has no option '{key}'"
        raise ToolkitError(what, where, hint, code="unknown_option")
    return found


def _plain(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _switched(option: Option, on: bool) -> Iterator[str]:
    if on:
        yield option.name
    elif option.negation:
        yield option.negation
