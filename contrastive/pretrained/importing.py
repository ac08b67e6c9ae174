"""From the folder of someone's weights to a model in use."""

import dataclasses
import pathlib
from typing import Any

import jax
from flax import nnx

from contrastive.data.tokenizer import Tokenizer
from contrastive.errors import WeightsError
from contrastive.inference import Markers, build_towers
from contrastive.pretrained import encoders, huggingface, mapping
from contrastive.pretrained.families import Description, Family
from contrastive.pretrained.source import Source, open_source
from contrastive.towers import TwoTower

FAMILIES: tuple[Family, ...] = (
    huggingface.CLIP,
    encoders.BERT,
    encoders.ROBERTA,
    encoders.MODERNBERT,
)


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


def import_weights(path: pathlib.Path, *, model_config: pathlib.Path | None = None) -> Imported:
    """Reads a model.

    Args:
      path: A folder, or a file of weights with its configuration beside it.
      model_config: A JSON configuration elsewhere.

    Raises:
      WeightsError: There are no weights, they are damaged or unsafe, no family knows them, or the
        tensors are not those that the configuration asks for.
    """
    source = open_source(path, model_config)
    family = recognise(source)
    settings = family.describe(source)
    tokenizer = make_tokenizer(settings)
    towers = nnx.eval_shape(lambda: build_towers(settings, tokenizer or settings, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(towers)
    shapes = {"/".join(map(str, p)): leaf for p, leaf in nnx.to_flat_state(state)}
    found = mapping.read(
        family.rules(settings),
        family.tensors(source),
        {name: leaf for name, leaf in shapes.items() if name not in family.fresh},
        ignored=family.ignored,
        renamed=family.renamed,
        source=str(source.weights),
    )
    parameters = found.parameters | _start_values(settings, tokenizer or settings, family.fresh)
    values = [
        (p, leaf.replace(jax.numpy.asarray(parameters["/".join(map(str, p))])))
        for p, leaf in nnx.to_flat_state(state)
    ]
    model = nnx.merge(graphdef, nnx.from_flat_state(values))
    return Imported(family, settings, tokenizer, model, found.ignored)


def _start_values(
    settings: Description, markers: Markers, fresh: tuple[str, ...]
) -> dict[str, Any]:
    """What a model that is not trained has there; nothing else of it is computed."""

    def start() -> dict[str, Any]:
        state = nnx.to_flat_state(nnx.state(build_towers(settings, markers, rngs=nnx.Rngs(0))))
        named = {"/".join(map(str, path)): leaf[...] for path, leaf in state}
        return {name: named[name] for name in fresh}

    return jax.jit(start)() if fresh else {}


def recognise(source: Source) -> Family:
    """The family of a source.

    Raises:
      WeightsError: None knows it; the message says what it calls itself.
    """
    for family in FAMILIES:
        if family.recognises(source):
            return family
    config = source.config
    said = config.get("model_type") or config.get("architectures") or "no configuration"
    raise WeightsError(
        f"{source.folder} is of an architecture that is not known here ({said}); known are "
        f"{', '.join(family.name for family in FAMILIES)}."
    )


def make_tokenizer(settings: Description) -> Tokenizer | None:
    """The tokenizer that came with the weights, at the length of the model's texts."""
    if settings.vocabulary is None:
        return None
    data = settings.data
    return Tokenizer(settings.vocabulary, length=data.text_length, config=data.tokenizer)
