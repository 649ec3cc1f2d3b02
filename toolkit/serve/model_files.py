"""The JSON files of a model folder and of an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError

ENGINE_FORMAT = 3  # of engine.json and what lies beside it


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises: ToolkitError when the file is missing, is not JSON, or holds no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ToolkitError(
            f"{path.name} is missing", str(path.parent), "A Hugging Face model folder is needed.", code="model"
        ) from None
    except ValueError as error:
        what = f"{path.name} cannot be read: it is not valid JSON: {error}"
        raise ToolkitError(what, str(path), "Fetch it again.", code="model") from None
    except OSError as error:
        raise ToolkitError(f"{path.name} cannot be read: {error}", str(path), "Fetch it again.", code="model") from None
    if not isinstance(value, dict):
        raise ToolkitError(f"{path.name} holds no JSON object", str(path), "Fetch it again.", code="model")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty when there is no such file.

    Raises: ToolkitError when the file is not JSON, or holds no object.
    """
    return read_json(path) if path.is_file() else {}
