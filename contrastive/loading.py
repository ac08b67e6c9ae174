"""From the folder of a run, or of foreign weights, to a model in use."""

import dataclasses
import logging
import os
import pathlib

import jax
from flax import nnx

from contrastive.building import NO_TEXTS, build_towers
from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.folders import as_recipe, is_run
from contrastive.inference import Model
from contrastive.mesh import Devices, MeshConfig, make_mesh, replicated
from contrastive.pretrained.importing import import_weights
from contrastive.recipe import Recipe, read_recipe
from contrastive.towers import TwoTower
from contrastive.training.checkpoint import read_parameters

_log = logging.getLogger(__name__)


def load(
    path: str | os.PathLike, *, devices: Devices | None = None, batch_size: int = 256
) -> Model:
    """The model of a run: settings, tokenizer and the newest checkpoint that can be read; or the
    model of someone's weights (:mod:`contrastive.pretrained`).

    Args:
      path: The run's folder, or a folder or file of weights.
      devices: Batches are cut over them, each of which holds all parameters; None: all devices of
        this process, ``jax.local_devices()``. Need not be those of the training.
      batch_size: Rows that are encoded at a time, rounded up to a multiple of the devices.

    Raises:
      WeightsError: ``path`` is neither the folder of a run nor weights of a known family, or the
        weights are damaged.
      CheckpointError: No checkpoint can be read.
    """
    devices = jax.local_devices() if devices is None else devices
    opened = open_model(pathlib.Path(path), devices=devices)
    return Model(opened.recipe, opened.towers, opened.tokenizer, devices, batch_size=batch_size)


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model with what it was made from; the tokenizer is None where it came without one."""

    recipe: Recipe
    towers: TwoTower
    tokenizer: Tokenizer | None


def open_model(path: pathlib.Path, *, devices: Devices) -> Opened:
    """Like :func:`load`, the parts; the parameters of a run lie whole on each of ``devices``."""
    if not is_run(path):
        found = import_weights(path)
        return Opened(as_recipe(found, path.resolve().name), found.towers, found.tokenizer)
    recipe = read_recipe(path)
    tokenizer = None if recipe.model.text is None else load_tokenizer(recipe.data, None, path)
    mesh = make_mesh(MeshConfig(), devices)
    markers = tokenizer or NO_TEXTS
    abstract = nnx.eval_shape(lambda: build_towers(recipe, markers, rngs=nnx.Rngs(0)))
    graphdef, parameters = nnx.split(abstract)
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), parameters
    )
    average = recipe.average_decay is not None  # evaluation during training uses it too
    restored = read_parameters(path, target, average=average, notify=_log.warning)
    return Opened(recipe, nnx.merge(graphdef, restored), tokenizer)
