"""What a family of published models is: how it is told, what its configuration means, and the table
of its names.

A family is data. To add one: a module with a :class:`Family`, and its line in
:mod:`contrastive.pretrained.importing`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers

from contrastive.data.config import DataConfig
from contrastive.objectives import LossConfig
from contrastive.pretrained.mapping import Rule
from contrastive.pretrained.source import Source
from contrastive.pretrained.tensors import Tensors
from contrastive.towers import BagConfig, TwoTowerConfig
from contrastive.towers.positions import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """Everything about a model but its parameters; with these names it is what
    :class:`contrastive.inference.ModelSettings` asks for.

    Attributes:
      data: Size and rule of the pictures, length of the texts, markers of the tokenizer.
      model: The towers. A tower that the model does not have is None.
      loss: ``clip`` or ``siglip``: whether there is a logit bias.
      vocabulary: The tokenizer; None where there are no texts, or none came with the weights.
      open: Settings of the text tower that the weights do not decide: of a plain encoder, the
        pooling.
      pad_id, begin_id, end_id: Of texts, for a model that came without a tokenizer; with
        ``vocabulary_size``, the markers that :func:`contrastive.inference.build_towers` asks for.
    """

    data: DataConfig
    model: TwoTowerConfig
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    vocabulary: tokenizers.Tokenizer | None = None
    pad_id: int = 0
    begin_id: int | None = None
    end_id: int | None = None
    open: tuple[str, ...] = ()

    @property
    def vocabulary_size(self) -> int:
        """Rows of the token table."""
        text = self.model.text
        return 0 if text is None or isinstance(text, BagConfig) else text.vocabulary_size

    @property
    def batch_size(self) -> int:
        """Of no meaning: the logit bias comes with the weights."""
        return 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One way in which models are published.

    Attributes:
      name: How messages and ``--format`` call it.
      recognises: Whether a source is of this family.
      describe: What its configuration says; raises :class:`WeightsError` where this project has
        no such architecture.
      rules: The table of names for a model. Names with a ``/`` are of the weights in a folder
        inside that of the model.
      tensors: All tensors of a source; the default: those of its one file.
      ignored: Regular expressions of tensors that hold no parameter.
      renamed: Regular expressions and replacements for other spellings of the names.
      fresh: Our parameters that the family does not have; they keep their start values.
      files: The configuration files of a model, by name, each a JSON object or array; None: there
        is no export to this family.
      tokenizer_class: What the tokenizer is called there; None: no tokenizer is written.
      weights_name: What the file of tensors is called in an exported folder.
      resampling: How its own code resizes position tables.
    """

    name: str
    recognises: Callable[[Source], bool]
    describe: Callable[[Source], Description]
    rules: Callable[[Description], Sequence[Rule]]
    tensors: Callable[[Source], Tensors] = lambda source: source.tensors
    ignored: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    fresh: tuple[str, ...] = ()
    files: Callable[[Description], dict[str, Any]] | None = None
    tokenizer_class: str | None = None
    weights_name: str = "model.safetensors"
    resampling: Method = "bicubic"
