"""JSON Schema of the files that people and coexist write, for editors."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel

from toolkit.config.models import Deployment, Recipe
from toolkit.errors import ToolkitError
from toolkit.host.model import Host
from toolkit.names import suggestion

Kind = Literal["deployment", "recipe", "host"]
KINDS: tuple[str, ...] = get_args(Kind)
_MODELS: dict[str, tuple[type[BaseModel], str]] = {
    "deployment": (Deployment, "coexist deployment"),
    "recipe": (Recipe, "coexist engine recipe"),
    "host": (Host, "coexist host record"),
}


def document(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a deployment, a recipe or a host record.

    Raises: ToolkitError when ``kind`` is none of the three.
    """
    if kind not in _MODELS:
        raise ToolkitError(f"there is no schema '{kind}'", hint=suggestion(kind, KINDS))
    model, title = _MODELS[kind]
    schema = model.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}
