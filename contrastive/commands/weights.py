"""``contrastive import`` and ``contrastive export``: weights of other libraries, both ways."""

import pathlib
from collections.abc import Sequence

import jax

from contrastive import config as config_lib
from contrastive.errors import ConfigError, UserError
from contrastive.folders import as_recipe, description, is_run, write_folder
from contrastive.loading import open_model
from contrastive.pretrained.exporting import export_weights, parameters
from contrastive.pretrained.importing import Imported, import_weights
from contrastive.recipe import Recipe, flatten


def import_model(
    path: pathlib.Path,
    output: pathlib.Path,
    *,
    model_config: pathlib.Path | None = None,
    image_size: int | None = None,
    expected: Sequence[str] = (),
) -> None:
    """Reads weights and writes them as a folder like that of a run.

    Args:
      path: A folder or a file of weights.
      output: The folder to make.
      model_config: The configuration, where it does not lie beside the weights.
      image_size: Another size of pictures.
      expected: ``--config.KEY=VALUE``, what the caller expects of the weights.

    Raises:
      WeightsError: The weights are damaged, unsafe or not known.
      ConfigError: They say something else than expected.
      UserError: ``path`` is the folder of a run, or the output is there already.
    """
    if is_run(path):
        raise UserError(
            f"{path} is the folder of a run or of an imported model: every command takes it as it "
            "is, and contrastive export writes it for other libraries."
        )
    found = import_weights(path, model_config=model_config, image_size=image_size)
    check_expected(found, expected)
    write_folder(found, output)
    count = sum(array.size for array in parameters(found.towers).values())
    print(f"{path} is of the family {found.family.name}: {count:,} parameters.")
    if found.ignored:
        print(f"Not read, since they hold no parameter: {', '.join(found.ignored)}.")
    print(f"Written to {output}; contrastive.load({str(output)!r}) opens it.")


def check_expected(found: Imported, expected: Sequence[str]) -> None:
    """Raises :class:`ConfigError` where the weights say something else than the command line."""
    recipe = as_recipe(found, "imported")
    full = config_lib.to_dict(recipe)
    before = flatten(full)
    for override in expected:
        key = override.removeprefix("--").partition("=")[0]
        after = flatten(config_lib.to_dict(config_lib.resolve(Recipe, full, [override])))
        name = key.removeprefix("config.")
        if before.get(name) != after.get(name):
            raise ConfigError(
                f"{key} = {after.get(name)!r} contradicts the weights, which have "
                f"{before.get(name)!r}. What comes with weights cannot be changed on import."
            )


def export_model(path: pathlib.Path, output: pathlib.Path, format_name: str) -> None:
    """Writes a model as a folder that another library loads.

    Raises:
      WeightsError: The format cannot hold the model, or there is no such format.
    """
    opened = open_model(path, devices=jax.local_devices()[:1])
    settings = description(opened.recipe, opened.tokenizer)
    family = export_weights(settings, opened.towers, opened.tokenizer, format_name, output)
    print(f"Written to {output} as {format_name} ({family.name}).")
