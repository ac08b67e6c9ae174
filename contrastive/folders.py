"""An imported model as a folder in the form of a run: what takes a run takes it, too."""

import dataclasses
import json
import logging
import pathlib

from flax import nnx

from contrastive.data.tokenizer import Tokenizer
from contrastive.errors import UserError
from contrastive.pairs import TOWERS
from contrastive.pretrained.families import Description
from contrastive.pretrained.importing import Imported
from contrastive.recipe import Recipe, write_recipe
from contrastive.training.checkpoint import CheckpointConfig, Checkpointer
from contrastive.training.optimizer import OptimizerConfig
from contrastive.whole import new_folder

_log = logging.getLogger(__name__)


def is_run(folder: pathlib.Path) -> bool:
    """Whether a folder is that of a run (or of an imported model) and not of foreign weights."""
    file = folder / "config.json"
    if not file.is_file():
        return (folder / "checkpoints").is_dir()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return (folder / "checkpoints").is_dir()
    return isinstance(content, dict) and "total_steps" in content


def as_recipe(imported: Imported, name: str) -> Recipe:
    """The recipe of a model that was not trained here: its towers, pictures, texts and loss; one
    step of training, which none has made. A temperature (or bias) that the weights do not have is
    one that was never learned."""
    settings = imported.settings
    frozen = tuple((name, None) for name in imported.family.fresh)
    return Recipe(
        name=name,
        total_steps=1,
        batch_size=1,
        data=settings.data,
        model=settings.model,
        loss=settings.loss,
        optimizer=OptimizerConfig(multipliers=frozen),
    )


def description(recipe: Recipe, tokenizer: Tokenizer | None) -> Description:
    """:func:`as_recipe` backwards: what an export needs to know of a model. A tower that its pairs
    have no use for is in the recipe and not in the model."""
    unused = {"image", "text"} - set(TOWERS[recipe.data.pairs])
    model = dataclasses.replace(recipe.model, **dict.fromkeys(unused))
    return Description(
        data=recipe.data,
        model=model,
        loss=recipe.loss,
        vocabulary=None if tokenizer is None or model.text is None else tokenizer.backend,
    )


def write_folder(imported: Imported, folder: pathlib.Path) -> None:
    """Writes ``config.json``, ``tokenizer.json`` and a checkpoint of step 0.

    Raises:
      UserError: The folder is not empty, or the model has a text tower and no tokenizer.
    """
    if imported.settings.model.text is not None and imported.tokenizer is None:
        raise UserError(
            "the weights came without a tokenizer, which the folder of a model needs: put its "
            "tokenizer.json beside them."
        )
    new_folder(folder)
    if imported.tokenizer is not None:
        imported.tokenizer.save(folder / "tokenizer.json")
    writer = Checkpointer(folder, CheckpointConfig(), _log.warning)
    try:
        parameters = nnx.state(imported.towers)
        writer.save(0, {"parameters": parameters}, {"step": 0})
        writer.wait()
    finally:
        writer.close()
    write_recipe(folder, as_recipe(imported, folder.resolve().name))  # last: the folder is whole
