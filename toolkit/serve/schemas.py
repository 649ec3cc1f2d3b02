"""Builders of the JSON Schemas by which requests are checked and described; OpenAI's error shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.serve.validation import UNSUPPORTED, Schema


def text(about: str = "", **more: Any) -> dict[str, Any]:
    """A string."""
    return _typed("string", about, more)


def boolean(about: str = "", **more: Any) -> dict[str, Any]:
    """True or false."""
    return _typed("boolean", about, more)


def integer(low: int | None = None, high: int | None = None, about: str = "", **more: Any) -> dict[str, Any]:
    """A whole number."""
    return _typed("integer", about, {**_given(minimum=low, maximum=high), **more})


def number(low: float | None = None, high: float | None = None, about: str = "", **more: Any) -> dict[str, Any]:
    """A finite number."""
    return _typed("number", about, {**_given(minimum=low, maximum=high), **more})


def listing(items: Schema, low: int | None = None, high: int | None = None, about: str = "") -> dict[str, Any]:
    """A list of ``low`` to ``high`` items."""
    return _typed("array", about, {"items": items, **_given(minItems=low, maxItems=high)})


def record(fields: Mapping[str, Schema], *required: str) -> dict[str, Any]:
    """An object; fields that are not named here are allowed."""
    return _typed("object", "", {"properties": dict(fields), **({"required": list(required)} if required else {})})


def one_of(*values: str, about: str = "", **more: Any) -> dict[str, Any]:
    """One of these strings."""
    return _typed("string", about, {"enum": list(values), **more})


def either(*alternatives: Schema) -> dict[str, Any]:
    """Any of these; alternatives within alternatives are one list."""
    return {"anyOf": [one for schema in alternatives for one in schema.get("anyOf", [schema])]}


def optional(schema: Schema) -> dict[str, Any]:
    """The same, or null, which clients send for a field that they leave at its default."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    listed = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **listed}


def unsupported(*neutral: object) -> dict[str, Any]:
    """A field that would change the answer: absent, null, or one of the values that change nothing."""
    about = "Not supported: only values that change nothing are accepted."
    return {"enum": [None, *neutral], "description": about, UNSUPPORTED: True}


def _typed(kind: str, about: str, more: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": kind, **more, **({"description": about} if about else {})}


def _given(**values: float | None) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def token_ids(vocab_size: int | None) -> dict[str, Any]:
    """A text as token ids; None: the vocabulary is not known yet."""
    last = None if vocab_size is None else vocab_size - 1
    return listing(integer(0, last, title="token id"), 1, about="Token ids of one text.")


OBJECT = record({})
MODEL = optional(text("The served name; absent: this server's one model."))
ERROR = record(
    {
        "error": record(
            {
                "message": text(),
                "type": text(),
                "param": optional(text("The guilty field of the body.")),
                "code": optional(text()),
            },
            "message", "type", "param", "code",
        )
    },
    "error",
)  # fmt: skip
