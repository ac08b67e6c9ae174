"""A folder or a file of someone's weights, before anyone has said what it is."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from contrastive.errors import WeightsError
from contrastive.pretrained.tensors import Tensors, read_tensors

# Where a folder keeps its weights; the first that is there counts.
_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
)
_OTHER = ("*.safetensors", "*.npz", "*.bin", "*.pt", "*.pth")
_LARGEST_JSON = 64 << 20


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights with the files beside them.

    Attributes:
      folder: Where configuration and tokenizer lie.
      weights: The file of tensors, or the index of several.
      model_config: A JSON configuration that was given by name; None: that of the folder.
    """

    folder: pathlib.Path
    weights: pathlib.Path
    model_config: pathlib.Path | None = None

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object of the folder; None where there is no such file.

        Raises:
          WeightsError: It is damaged.
        """
        return _read_json(self.folder / name)

    def json_list(self, name: str) -> list[Any] | None:
        """A JSON array of the folder; None where there is no such file.

        Raises:
          WeightsError: It is damaged.
        """
        return _read_json(self.folder / name, list)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that decides which architecture this is; empty where there is none."""
        if self.model_config is not None:
            found = _read_json(self.model_config)
            if found is None:
                raise WeightsError(f"there is no file {self.model_config}.")
            return found
        return self.json("config.json") or self.json("open_clip_config.json") or {}

    @functools.cached_property
    def tensors(self) -> Tensors:
        """The arrays by name."""
        return read_tensors(self.weights)


def open_source(path: pathlib.Path, model_config: pathlib.Path | None = None) -> Source:
    """Finds the weights of a folder; a file is itself.

    Raises:
      WeightsError: There are none.
    """
    if path.is_file():
        return Source(path.parent, path, model_config)
    if not path.is_dir():
        raise WeightsError(
            f"{path} is not the folder of a run, and there is no folder or file of weights there."
        )
    known = [path / name for name in _FILES if (path / name).is_file()]
    others = [file for pattern in _OTHER for file in sorted(path.glob(pattern))]
    if not known and len(others) != 1:
        what = f"several: {', '.join(f.name for f in others)}; name one" if others else "none"
        raise WeightsError(
            f"{path} is not the folder of a run, and should hold one file of weights "
            f"({', '.join(_FILES)}); {what}."
        )
    return Source(path, (known or others)[0], model_config)


def _read_json(file: pathlib.Path, kind: type = dict) -> Any:
    if not file.is_file():
        return None
    if file.stat().st_size > _LARGEST_JSON:
        raise WeightsError(f"{file} is too large for a configuration.")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{file} is damaged: {error}.") from error
    if not isinstance(found, kind):
        what = "object" if kind is dict else "array"
        raise WeightsError(f"{file} is damaged: a JSON {what} is expected.")
    return found


class Settings:
    """Reads a foreign configuration, so that a missing or odd key is a sentence and not a
    traceback.

    Args:
      values: The JSON object.
      where: How messages call it.
    """

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def group(self, name: str) -> "Settings":
        """A nested object; an empty one where there is none.

        Raises:
          WeightsError: It is something else.
        """
        inner = self.values.get(name)
        if not isinstance(inner, dict | None):
            raise WeightsError(f"{self.where}: {name} = {inner!r} has to be an object.")
        return Settings(inner or {}, f"{self.where}: {name}")

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number, at least one; without a default, the key has to be there.

        Raises:
          WeightsError: It is missing, or something else.
        """
        value = self.get(name, default)
        if type(value) is not int or value < 1:
            raise WeightsError(f"{self.where}: {name} = {value!r} has to be a number above 0.")
        return value

    def three(self, name: str, default: Sequence[float]) -> tuple[float, float, float]:
        """Three numbers, one a colour.

        Raises:
          WeightsError: It is something else.
        """
        value = self.values.get(name, default)
        whole = isinstance(value, list | tuple) and len(value) == 3
        if not whole or any(type(part) not in (int, float) for part in value):
            raise WeightsError(f"{self.where}: {name} = {value!r}; three numbers are expected.")
        red, green, blue = (float(part) for part in value)
        return red, green, blue

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the kind of the default; without one, the key has to be there.

        Raises:
          WeightsError: It is missing, or of another kind.
        """
        value = self.values.get(name, default)
        if value is None:
            raise WeightsError(f"{self.where} does not say {name}.")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if isinstance(default, float) and number:
            return float(value)
        if default is not None and type(value) is not type(default):
            raise WeightsError(
                f"{self.where}: {name} = {value!r} has to be a {type(default).__name__}."
            )
        return value
