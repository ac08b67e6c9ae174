"""From the folder of a run, or of foreign weights, to a model in use."""

import logging
import os
import pathlib

import jax
from flax import nnx

from contrastive.data.tokenizer import load_tokenizer
from contrastive.folders import as_recipe, is_run
from contrastive.inference import Model, build_towers
from contrastive.mesh import Devices, MeshConfig, make_mesh, replicated
from contrastive.pretrained.importing import import_weights
from contrastive.recipe import read_recipe
from contrastive.training.checkpoint import read_parameters

_log = logging.getLogger(__name__)


def load(
    path: str | os.PathLike, *, devices: Devices | None = None, batch_size: int = 256
) -> Model:
    """The model of a run: settings, tokenizer and the newest checkpoint that can be read; or the
    model of someone's weights (:mod:`contrastive.pretrained`).

    Args:
      path: The run's folder, or a folder or file of weights.
      devices: Where to compute; None: the default device. Need not be those of the training.
      batch_size: Rows that are encoded at a time.

    Raises:
      WeightsError: ``path`` is neither the folder of a run nor weights of a known family, or the
        weights are damaged.
      CheckpointError: No checkpoint can be read.
    """
    workdir = pathlib.Path(path)
    if not is_run(workdir):
        found = import_weights(workdir)
        return Model(
            as_recipe(found, workdir.resolve().name),
            found.towers,
            found.tokenizer,
            devices,
            batch_size=batch_size,
        )
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
