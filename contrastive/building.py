"""The towers that a recipe describes: fresh, seeded, or as shapes only."""

from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from flax import nnx

from contrastive.data.config import DataConfig
from contrastive.mesh import run_once_options
from contrastive.objectives import LossConfig, start_values
from contrastive.towers import TwoTower, TwoTowerConfig


@runtime_checkable
class ModelSettings(Protocol):
    """What a model needs to know of its recipe."""

    @property
    def data(self) -> DataConfig: ...

    @property
    def model(self) -> TwoTowerConfig: ...

    @property
    def loss(self) -> LossConfig: ...

    @property
    def batch_size(self) -> int: ...


@runtime_checkable
class Markers(Protocol):
    """What a text tower needs to know of its tokenizer; a :class:`Tokenizer` is one."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def pad_id(self) -> int: ...

    @property
    def end_id(self) -> int | None: ...


class _NoTexts(NamedTuple):
    vocabulary_size: int = 1
    pad_id: int = 0
    end_id: int | None = None


NO_TEXTS: Markers = _NoTexts()
"""The markers for a model without a text tower."""


def build_towers(recipe: ModelSettings, tokenizer: Markers, *, rngs: nnx.Rngs) -> TwoTower:
    """The towers that a recipe describes, freshly initialised."""
    return TwoTower(recipe.model, **_sizes(recipe, tokenizer), rngs=rngs)


def abstract_towers(recipe: ModelSettings, *, vocabulary_size: int, rngs: nnx.Rngs) -> TwoTower:
    """:func:`build_towers` where only the size of the vocabulary is known: for plans."""
    return TwoTower(recipe.model, **_sizes_of(recipe, vocabulary_size, 0, 1), rngs=rngs)


def initial_towers(recipe: ModelSettings, tokenizer: Markers, seed: int) -> TwoTower:
    """:func:`build_towers` as one program; the parameters depend only on the seed."""
    abstract = nnx.eval_shape(lambda: build_towers(recipe, tokenizer, rngs=nnx.Rngs(0)))
    sizes = tuple(_sizes(recipe, tokenizer).items())
    key = jax.random.key(seed)
    draw = _draw_parameters.lower(key, recipe.model, sizes)
    parameters = draw.compile(run_once_options(next(iter(key.devices()))))(key)
    return nnx.merge(nnx.graphdef(abstract), parameters)


def _sizes(recipe: ModelSettings, tokenizer: Markers) -> dict[str, Any]:
    return _sizes_of(recipe, tokenizer.vocabulary_size, tokenizer.pad_id, tokenizer.end_id)


def _sizes_of(
    recipe: ModelSettings, vocabulary_size: int, pad_id: int, end_id: int | None
) -> dict[str, Any]:
    scale, bias = start_values(recipe.loss, recipe.batch_size)
    return {
        "pairs": recipe.data.pairs,
        "image_size": recipe.data.image_size,
        "text_length": recipe.data.text_length,
        "vocabulary_size": vocabulary_size,
        "pad_id": pad_id,
        "end_id": end_id,
        "scale_init": scale,
        "bias_init": bias,
        "judgements": judgements(recipe),
        "joined": recipe.data.joined,
    }


def judgements(recipe: ModelSettings) -> int:
    """Numbers that the model judges a pair of texts by; 0: it compares rows."""
    if recipe.loss.name == "relevance":
        return 1
    return len(recipe.data.fields.labels) if recipe.loss.name == "classifier" else 0


@partial(jax.jit, static_argnames=("config", "sizes"))
def _draw_parameters(key: jax.Array, config: TwoTowerConfig, sizes: tuple) -> Any:
    return nnx.state(TwoTower(config, **dict(sizes), rngs=nnx.Rngs(key)))
