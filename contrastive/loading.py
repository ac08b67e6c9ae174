"""From the folder of a run to a model in use."""

import logging
import os
import pathlib

import jax
from flax import nnx

from contrastive.data.tokenizer import load_tokenizer
from contrastive.inference import Model, build_towers
from contrastive.mesh import Devices, MeshConfig, make_mesh, replicated
from contrastive.recipe import read_recipe
from contrastive.training.checkpoint import read_parameters

_log = logging.getLogger(__name__)


def load(
    path: str | os.PathLike, *, devices: Devices | None = None, batch_size: int = 256
) -> Model:
    """The model of a run: settings, tokenizer and the newest checkpoint that can be read.

    Args:
      path: The run's folder.
      devices: Where to compute; None: the default device. Need not be those of the training.
      batch_size: Rows that are encoded at a time.

    Raises:
      UserError: ``path`` is not the folder of a run.
      CheckpointError: No checkpoint can be read.
    """
    workdir = pathlib.Path(path)
    recipe = read_recipe(workdir)
    tokenizer = load_tokenizer(recipe.data, None, workdir)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1] if devices is None else devices)
    abstract = nnx.eval_shape(lambda: build_towers(recipe, tokenizer, rngs=nnx.Rngs(0)))
    graphdef, parameters = nnx.split(abstract)
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=replicated(mesh)), parameters
    )
    average = recipe.average_decay is not None  # evaluation during training uses it too
    restored = read_parameters(workdir, target, average=average, notify=_log.warning)
    towers = nnx.merge(graphdef, restored)
    return Model(recipe, towers, tokenizer, batch_size=batch_size)
