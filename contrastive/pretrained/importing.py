"""From the folder of someone's weights to a model in use."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from contrastive.building import build_towers
from contrastive.data.tokenizer import Tokenizer
from contrastive.errors import WeightsError
from contrastive.objectives import start_values
from contrastive.pretrained import (
    big_vision,
    clip,
    convnext,
    encoders,
    mapping,
    open_clip,
    open_clip_siglip,
    resnet,
    siglip,
    siglip2,
    vit,
)
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.source import Source, open_source
from contrastive.towers import TwoTower, VisionTransformerConfig
from contrastive.towers.positions import Method, resize_positions

FAMILIES: tuple[Family, ...] = (
    big_vision.FAMILY,
    clip.FAMILY,
    siglip.FAMILY,
    siglip2.FAMILY,
    open_clip.FAMILY,
    open_clip.CUSTOM,
    open_clip_siglip.FAMILY,
    vit.FAMILY,
    resnet.FAMILY,
    convnext.FAMILY,
    resnet.CLIP,
    encoders.BERT,
    encoders.ROBERTA,
    encoders.MODERNBERT,
)
"""Every family, in the order in which they are asked."""


@dataclasses.dataclass(frozen=True)
class Imported:
    """A model that was read.

    Attributes:
      family: Which it is of.
      settings: Everything but the parameters.
      tokenizer: For its texts; None where it has none.
      towers: The model.
      ignored: Tensors of the file that hold no parameter.
    """

    family: Family
    settings: Description
    tokenizer: Tokenizer | None
    towers: TwoTower
    ignored: tuple[str, ...]


def import_weights(
    path: pathlib.Path,
    *,
    model_config: pathlib.Path | None = None,
    image_size: int | None = None,
) -> Imported:
    """Reads a model.

    Args:
      path: A folder, or a file of weights with its configuration beside it.
      model_config: A JSON configuration elsewhere.
      image_size: Another size of pictures; the position table is resized as the family's own code
        does it.

    Raises:
      WeightsError: There are no weights, they are damaged or unsafe, no family knows them, or the
        tensors are not those that the configuration asks for.
    """
    source = open_source(path, model_config)
    family = recognise(source)
    settings = family.describe(source)
    tokenizer = make_tokenizer(settings)
    _, shapes = abstract_state(settings, tokenizer)
    found = mapping.read(
        family.rules(settings),
        family.tensors(source),
        {name: leaf for name, leaf in shapes.items() if name not in family.fresh},
        ignored=family.ignored,
        renamed=family.renamed,
        source=str(source.weights),
    )
    values = found.parameters | start_scalars(settings, family)
    if image_size is not None and image_size != settings.data.image_size:
        settings, values = resized(settings, values, image_size, family.resampling)
    towers = with_parameters(settings, tokenizer, values)
    return Imported(family, settings, tokenizer, towers, found.ignored)


def abstract_state(
    settings: Description, tokenizer: Tokenizer | None
) -> tuple[nnx.GraphDef[TwoTower], dict[str, Any]]:
    """The structure of the model, and its parameters' variables by path, without values."""
    towers = nnx.eval_shape(lambda: build_towers(settings, tokenizer or settings, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(towers)
    return graphdef, {"/".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(state)}


def with_parameters(
    settings: Description, tokenizer: Tokenizer | None, values: Mapping[str, np.ndarray]
) -> TwoTower:
    """The model with these parameters, by path."""
    graphdef, shapes = abstract_state(settings, tokenizer)
    flat = [(_path(name), leaf.replace(jnp.asarray(values[name]))) for name, leaf in shapes.items()]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def _path(name: str) -> tuple[str | int, ...]:
    """The keys of a path; entries of a list have numbers."""
    return tuple(int(key) if key.isdigit() else key for key in name.split("/"))


def start_scalars(settings: Description, family: Family) -> dict[str, np.ndarray]:
    """Start values of the scalars that the family does not have."""
    scale, bias = start_values(settings.loss, settings.batch_size)
    known = {"log_scale": math.log(scale), "bias": bias}
    return {name: np.asarray(known[name], np.float32) for name in family.fresh}


def resized(
    settings: Description, values: Mapping[str, np.ndarray], image_size: int, method: Method
) -> tuple[Description, dict[str, np.ndarray]]:
    """The same model for pictures of another size.

    Raises:
      WeightsError: Its image tower has no position table on a grid.
    """
    image = settings.model.image
    if not isinstance(image, VisionTransformerConfig):
        raise WeightsError("only a vision transformer can be resized to another size of pictures.")
    if image_size % image.patch_size:
        raise WeightsError(
            f"--image-size={image_size} is not a multiple of the patch size {image.patch_size}."
        )
    old, new = settings.data.image_size // image.patch_size, image_size // image.patch_size
    table = resize_positions(values["image/positions"], (old, old), (new, new), method=method)
    data = dataclasses.replace(settings.data, image_size=image_size)
    return dataclasses.replace(settings, data=data), {**values, "image/positions": table}


def recognise(source: Source) -> Family:
    """The family of a source.

    Raises:
      WeightsError: None knows it; the message says what it calls itself.
    """
    for family in FAMILIES:
        if family.recognises(source):
            return family
    config = source.config
    if not config:
        count = len(source.tensors)  # says so, if these are no weights at all
        raise WeightsError(
            f"{source.weights} has {count} tensors, and no configuration says of what "
            "architecture: put its config.json or open_clip_config.json beside it, or name it by "
            "--model-config. It is not known here from the tensors alone."
        )
    said = config.get("model_type") or config.get("architectures") or "it does not say"
    raise WeightsError(
        f"{source.folder} is of an architecture that is not known here ({said}); known are "
        f"{', '.join(family.name for family in FAMILIES)}."
    )


def tokenizer_of(path: pathlib.Path) -> Tokenizer | None:
    """The tokenizer that lies beside weights, which are not read."""
    source = open_source(path)
    return make_tokenizer(recognise(source).describe(source))


def make_tokenizer(settings: Description) -> Tokenizer | None:
    """The tokenizer that came with the weights, at the length of the model's texts."""
    if settings.vocabulary is None:
        return None
    data = settings.data
    return Tokenizer(settings.vocabulary, length=data.text_length, config=data.tokenizer)
