"""An imported model as a folder in the form of a run: what takes a run takes it, too."""

import json
import logging
import pathlib

from flax import nnx

from contrastive.data.tokenizer import Tokenizer
from contrastive.errors import UserError
from contrastive.pretrained.families import Description
from contrastive.pretrained.importing import Imported
from contrastive.recipe import Recipe, write_recipe
from contrastive.training.checkpoint import CheckpointConfig, Checkpointer

_log = logging.getLogger(__name__)


def is_run(folder: pathlib.Path) -> bool:
    """Whether a folder is that of a run (or of an imported model) and not of foreign weights."""
    file = folder / "config.json"
    if not file.is_file():
        return (folder / "checkpoints").is_dir()
    try:
        return "total_steps" in json.loads(file.read_text())
    except ValueError:
        return (folder / "checkpoints").is_dir()


def as_recipe(imported: Imported, name: str) -> Recipe:
    """The recipe of a model that was not trained here: its towers, pictures, texts and loss; one
    step of training, which none has made."""
    settings = imported.settings
    return Recipe(
        name=name,
        total_steps=1,
        batch_size=1,
        data=settings.data,
        model=settings.model,
        loss=settings.loss,
    )


def description(recipe: Recipe, tokenizer: Tokenizer | None) -> Description:
    """:func:`as_recipe` backwards: what an export needs to know of a model."""
    return Description(
        data=recipe.data,
        model=recipe.model,
        loss=recipe.loss,
        vocabulary=None if tokenizer is None else tokenizer.backend,
    )


def write_folder(imported: Imported, folder: pathlib.Path) -> None:
    """Writes ``config.json``, ``tokenizer.json`` and a checkpoint of step 0.

    Raises:
      UserError: The folder is not empty, or the model has a text tower and no tokenizer.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already and is not empty; choose another --output.")
    if imported.settings.model.text is not None and imported.tokenizer is None:
        raise UserError(
            "the weights came without a tokenizer, which the folder of a model needs: put its "
            "tokenizer.json beside them."
        )
    folder.mkdir(parents=True, exist_ok=True)
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
