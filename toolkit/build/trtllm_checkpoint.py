"""What a converted checkpoint is, from its ``config.json`` alone; where one is, or will be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.config.load import LoadedRecipe, resolve
from toolkit.errors import ToolkitError
from toolkit.files import read_json

CONFIG = "config.json"
# What TensorRT-LLM's converters take for weights of another type.
_HALF = "float16"
_DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in TensorRT-LLM's format. ``num_heads`` is of the whole model; None: its config does not say."""

    folder: Path
    config: Mapping[str, Any]
    architecture: str | None
    dtype: str
    tp_size: int
    pp_size: int
    world_size: int
    num_heads: int | None
    quant_algo: str | None
    kv_quant_algo: str | None

    @property
    def fp8_kv(self) -> bool:
        return (self.kv_quant_algo or "").upper() == "FP8"

    @property
    def int8_kv(self) -> bool:
        return (self.kv_quant_algo or "").upper() == "INT8"

    def rank_files(self) -> tuple[Path, ...]:
        """The weights of each rank."""
        return tuple(self.folder / f"rank{rank}.safetensors" for rank in range(self.world_size))


@dataclass(frozen=True)
class Conversion:
    """A checkpoint still to be made: the model, the script, and what they are told."""

    model_dir: Path
    script: Path
    dtype: str
    tp_size: int
    pp_size: int
    model_config: Mapping[str, Any]

    @property
    def world_size(self) -> int:
        """How many ranks it is divided among."""
        return self.tp_size * self.pp_size


@dataclass(frozen=True)
class Source:
    """A recipe's checkpoint; ``conversion`` when it must be made first."""

    checkpoint: Checkpoint
    conversion: Conversion | None = None


def read(folder: Path, where: str | None = None) -> Checkpoint:
    """The checkpoint in a folder.

    Raises: ToolkitError when it is none (a Hugging Face folder is none).
    """
    path = folder / CONFIG
    config = read_json(path, hint="Name a converted checkpoint, or 'model' with 'convert_script'.")
    if not isinstance(config, dict) or "architecture" not in config:
        what = f"'{folder}' is no checkpoint in TensorRT-LLM's format"
        if isinstance(config, dict) and "architectures" in config:
            what += ": it is a Hugging Face folder"
        hint = "Name it as 'model' and add 'convert_script', or name the converted folder."
        raise ToolkitError(what, where or str(path), hint, code="not_a_checkpoint")
    return _checkpoint(folder, config, str(path))


def _checkpoint(folder: Path, config: Mapping[str, Any], place: str) -> Checkpoint:
    mapping, quantization = _section(config, "mapping"), _section(config, "quantization")
    tp_size, pp_size = (_size(mapping, key, place) for key in ("tp_size", "pp_size"))
    world_size = tp_size * pp_size * _size(mapping, "cp_size", place)
    if mapping.get("world_size", world_size) != world_size:
        what = f"mapping.world_size {mapping['world_size']} is not tp_size x pp_size, {world_size}"
        raise ToolkitError(what, place, "Convert the model again.", code="not_a_checkpoint")
    return Checkpoint(
        folder, config, config.get("architecture"), str(config.get("dtype") or _HALF), tp_size, pp_size, world_size,
        _number(config.get("num_attention_heads")),
        quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo"),
    )  # fmt: skip


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _size(mapping: Mapping[str, Any], key: str, place: str) -> int:
    value = mapping.get(key, 1)
    if type(value) is not int or value < 1:
        raise ToolkitError(
            f"mapping.{key} is {value!r:.40}", place, "Convert the model again.", code="not_a_checkpoint"
        )
    return value


def _number(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def find(loaded: LoadedRecipe, made_in: Path) -> Source:
    """The recipe's checkpoint as it is, or as its conversion will make it: then in its place, or under ``made_in``.

    Raises: ToolkitError when there is none and none can be made, or it is for another tp_size or pp_size.
    """
    recipe = loaded.model
    folder = _written(loaded)
    if folder is not None and (folder / CONFIG).exists():
        checkpoint = read(folder, loaded.where("checkpoint"))
        _check_mapping(loaded, checkpoint)
        return Source(checkpoint)
    if recipe.convert_script is None or recipe.model is None:
        hint = "Convert the model first, or add 'model' and 'convert_script' to have it done."
        what = f"there is no converted checkpoint in '{folder or recipe.checkpoint}'"
        raise ToolkitError(what, loaded.where("checkpoint"), hint, code="not_found")
    place = folder or made_in
    if (place / CONFIG).exists():
        return Source(read(place))
    conversion = _conversion(loaded, recipe.model, recipe.convert_script)
    return Source(_planned(place, conversion), conversion)


def _written(loaded: LoadedRecipe) -> Path | None:
    """The folder that 'checkpoint' names: where it is, else the first place whose parent folder is there."""
    value = loaded.model.checkpoint
    if value is None:
        return None
    if value.is_absolute() or str(value).startswith("~/"):
        return value.expanduser()
    base = loaded.file.absolute().parent
    places = [place / value for place in (base, base.parent, Path.cwd())]
    known = (place for place in places if place.exists())
    return next(known, None) or next((place for place in places if place.parent.is_dir()), places[0])


def _conversion(loaded: LoadedRecipe, model: Path, script: Path) -> Conversion:
    recipe = loaded.model
    model_dir = resolve(loaded.file, model, loaded.where("model"))
    config = read_json(model_dir / CONFIG, hint="Name a folder in Hugging Face's format.")
    if not isinstance(config, dict):
        raise ToolkitError("is no model's config", str(model_dir / CONFIG), code="not_a_model")
    found = resolve(loaded.file, script, loaded.where("convert_script"))
    return Conversion(model_dir, found, _dtype(recipe.dtype, config), recipe.tp_size, recipe.pp_size, config)


def _dtype(asked: str, config: Mapping[str, Any]) -> str:
    """The type to convert to; ``auto`` takes the model's own where it is a half, as TensorRT-LLM does."""
    if asked != "auto":
        return asked
    own = str(config.get("torch_dtype") or config.get("dtype") or "").removeprefix("torch.")
    return own if own in _DTYPES and own != "float32" else _HALF


def _planned(folder: Path, conversion: Conversion) -> Checkpoint:
    """What the conversion will give, as far as the model's config tells."""
    text = _section(conversion.model_config, "text_config") or conversion.model_config
    architectures = conversion.model_config.get("architectures") or [None]
    return Checkpoint(
        folder, {}, architectures[0], conversion.dtype, conversion.tp_size, conversion.pp_size,
        conversion.world_size, _number(text.get("num_attention_heads")), None, None,
    )  # fmt: skip


def _check_mapping(loaded: LoadedRecipe, checkpoint: Checkpoint) -> None:
    """Raises ToolkitError when the recipe says another tp_size or pp_size than the checkpoint was converted for."""
    for key in ("tp_size", "pp_size"):
        asked, has = getattr(loaded.model, key), getattr(checkpoint, key)
        if key in loaded.model.model_fields_set and asked != has:
            raise ToolkitError(
                f"'{key}' is {asked}, but the checkpoint was converted for {has} ({checkpoint.folder / CONFIG})",
                loaded.where(key),
                f"Remove '{key}', write {has}, or convert the model for {asked}.",
                code="mapping",
                wanted=asked,
                found=has,
            )
