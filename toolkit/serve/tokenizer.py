"""The tokenizer of a Hugging Face folder, through the ``tokenizers`` library, and its chat template."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from toolkit.errors import ToolkitError
from toolkit.serve.model_files import read_json_if_there

TOKENIZER_FILE = "tokenizer.json"


class TextTokenizer:
    """Text to ids and back. Safe to use from several threads."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], template: str | None) -> None:
        # Files of embedding models cut and pad on their own; here the server decides.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._config = config
        self._template = template
        self._byte_level = "ByteLevel" in repr(tokenizer.decoder)

    @classmethod
    def load(cls, folder: Path) -> TextTokenizer:
        """The tokenizer of a folder.

        Raises: ToolkitError when ``tokenizer.json`` is missing or broken.
        """
        return cls(read_tokenizer(folder), read_json_if_there(folder / "tokenizer_config.json"), _chat_template(folder))

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """The ids of a text; with ``special``, with the marks that the model expects at its borders."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for (part of a character, it may be)."""
        token = self._tokenizer.id_to_token(token_id) or ""
        if self._byte_level:
            table = _byte_of_character()
            if all(character in table for character in token):
                return bytes(table[character] for character in token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()

    def token_text(self, token_id: int) -> str:
        """The text of one token for people: bytes that are no whole character appear as ``bytes:\\xNN``."""
        raw = self.token_bytes(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    @property
    def has_chat_template(self) -> bool:
        """True when ``chat`` can be used."""
        return self._template is not None

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """The ids of a conversation, written as the model's chat template says.

        Raises: ValueError when the model has no template or the template refuses the messages.
        """
        return self.encode(self.render(messages), special=False)

    def warm_chat(self) -> None:
        """The template is compiled afterwards, though it may refuse a message as plain as this one."""
        with contextlib.suppress(ValueError):
            self.chat([{"role": "user", "content": "Hello"}])

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation, up to where the answer begins. Raises: ValueError as ``chat`` does."""
        if self._template is None:
            raise ValueError("this model has no chat template; use /v1/completions")
        names = ("bos_token", "eos_token", "unk_token", "pad_token")
        marks = {name: _content(self._config.get(name)) for name in names}
        given = {name: mark for name, mark in marks.items() if mark is not None}
        return _render(self._template, messages=messages, add_generation_prompt=True, **given)


def read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a folder's ``tokenizer.json``.

    Raises: ToolkitError when the file is missing or broken.
    """
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        raise ToolkitError(f"{TOKENIZER_FILE} is missing", str(folder), "Save the model with a fast tokenizer.")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises bare Exception
        raise ToolkitError(f"not a tokenizer: {e}", str(path), "Fetch the model again.") from e


def _chat_template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = read_json_if_there(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        named = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _content(mark: object) -> str | None:
    if isinstance(mark, Mapping):
        mark = mark.get("content")
    return mark if isinstance(mark, str) else None


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


@functools.cache
def _compiled(template: str) -> Callable[..., str]:
    # Imported late: chat is the only thing that needs it, and a start should not pay for it.
    from jinja2.ext import loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment.from_string(template).render


def _render(template: str, **variables: Any) -> str:
    try:
        return _compiled(template)(**variables)
    except Exception as e:  # templates run the model author's code: any error of it is about these messages
        raise ValueError(f"the chat template refuses these messages: {e}") from e


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> str:
    raise ValueError(message)
