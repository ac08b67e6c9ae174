"""Settings of the loss: which one, how its scale starts, and how the logit matrix is cut."""

import dataclasses
import math
from typing import Literal

import jax

from contrastive.errors import ConfigError
from contrastive.logits import LogitPartition
from contrastive.mesh import BATCH_AXES, batch_parts
from contrastive.temperature import initial_bias, initial_log_scale

LOSS_SCOPE = "contrastive_loss"
"""The name by which profiles and plans find the loss in the program."""
Loss = Literal[
    "clip",
    "siglip",
    "info_nce",
    "nt_xent",
    "gte",
    "decoupled",
    "multi_positive",
    "triplet",
    "classifier",
    "relevance",
]
# What takes texts that do not belong to a pair; the other losses compare pairs only.
TAKE_NEGATIVES = ("info_nce", "clip", "triplet", "relevance")
# What judges each pair by itself, with a layer of its own behind the tower.
JUDGES = ("classifier", "relevance")
# What has no scale.
_WITHOUT_SCALE = ("triplet", *JUDGES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Which loss, how its scale starts and is limited, and how the logit matrix is cut."""

    # clip: softmax both ways; info_nce: one way; siglip: sigmoid; nt_xent: SimCLR's, among all
    # views of the batch; gte: one denominator for both directions and sides; decoupled: without
    # the positive in it; multi_positive: equal content ids are positives; triplet: a margin on
    # distances; classifier: the label of each pair (config.data.fields.labels); relevance: a score
    # of joined texts, high for a pair and low with its negatives
    name: Loss = "clip"
    scale_init: float | None = None  # exp(log_scale) at step 0; None: 1/0.07, or 10 for siglip
    max_scale: float | None = None  # limit of the scale; None: 100, or no limit for siglip
    bias_init: float | Literal["batch_size"] | None = None  # siglip only; None: -10
    margin: float | None = None  # triplet only: of distances between unit rows; None: 1
    # triplet only: which negatives of a batch count; None: those that come with each pair
    mining: Literal["batch_hard", "batch_all"] | None = None
    # Whether the negatives that come with a pair (config.data.negatives) are also the other pairs'
    share_negatives: bool = True
    # The loss is also that of the first so many entries of the rows, brought to unit length, with
    # these weights (and 1 for whole rows); no weights: all 1
    matryoshka: tuple[int, ...] = ()
    matryoshka_weights: tuple[float, ...] = ()
    mask_duplicates: bool = True  # pairs with equal content ids are not each other's negatives
    drop_duplicates: bool = False  # of pairs with equal content ids only the first is in the loss
    exchange: Literal["dense", "gather", "ring"] | None = None  # None: read from the inputs
    block_rows: int | None = None  # rows of a tile of the logit matrix; None: chosen
    block_cols: int | None = None  # columns of a tile; None: chosen

    def __post_init__(self) -> None:
        if self.bias_init is not None and self.name != "siglip":
            raise ConfigError(
                "config.loss.bias_init is used by 'siglip' only; config.loss.name is "
                f"{self.name!r}."
            )
        if self.name == "multi_positive" and not self.mask_duplicates:
            raise ConfigError(
                "config.loss.name = 'multi_positive' makes equal contents positives; "
                "config.loss.mask_duplicates = False would take their ids away."
            )
        self._check_triplet()
        self._check_scale()
        self._check_matryoshka()
        if self.exchange in (None, "dense") and (self.block_rows or self.block_cols):
            raise ConfigError(
                "config.loss.block_rows and block_cols cut the logits of exchange = 'gather' or "
                f"'ring'; config.loss.exchange is {self.exchange!r}."
            )
        for name in ("scale_init", "max_scale", "block_rows", "block_cols"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"config.loss.{name} = {value} has to be positive.")
        if self.name in _WITHOUT_SCALE:
            return
        limit, (start, _) = scale_limit(self), start_values(self, 2)
        if limit is not None and start > limit:
            raise ConfigError(
                f"config.loss.scale_init = {start:g} is above the limit, config.loss.max_scale = "
                f"{limit:g}."
            )

    def _check_triplet(self) -> None:
        for name in () if self.name == "triplet" else ("margin", "mining"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"config.loss.{name} is used by 'triplet' only; config.loss.name is "
                    f"{self.name!r}."
                )

    def _check_scale(self) -> None:
        if self.name not in _WITHOUT_SCALE:
            return
        for name in ("scale_init", "max_scale", "exchange", "block_rows", "block_cols"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"config.loss.{name} is not used by {self.name!r}, which has no scale and no "
                    "logits across the batch."
                )
        if self.name == "classifier" and not self.mask_duplicates:
            raise ConfigError(
                "config.loss.mask_duplicates is not used by 'classifier', which compares nothing "
                "across pairs."
            )

    def _check_matryoshka(self) -> None:
        dims, weights = self.matryoshka, self.matryoshka_weights
        if list(dims) != sorted(set(dims)) or (dims and dims[0] < 1):
            raise ConfigError(
                f"config.loss.matryoshka = {dims} has to be sizes of prefixes, each larger than "
                "the one before."
            )
        if weights and (len(weights) != len(dims) or min(weights) <= 0):
            raise ConfigError(
                f"config.loss.matryoshka_weights = {weights} has to be a positive number for each "
                f"of config.loss.matryoshka = {dims}."
            )
        if dims and self.name in JUDGES:
            raise ConfigError(
                f"config.loss.matryoshka has no effect on {self.name!r}, which reads whole rows."
            )

    def prefixes(self) -> tuple[tuple[int, float], ...]:
        """The prefixes of rows that are compared beside whole rows, with their weights."""
        weights = self.matryoshka_weights or (1.0,) * len(self.matryoshka)
        return tuple(zip(self.matryoshka, weights, strict=True))

    def check_rows(self, dim: int, *, momentum: bool) -> None:
        """Raises :class:`ConfigError` where prefixes are not shorter than rows, or keys come from
        a momentum encoder."""
        if not self.matryoshka:
            return
        if self.matryoshka[-1] >= dim:
            raise ConfigError(
                f"config.loss.matryoshka = {self.matryoshka}: rows have {dim} entries, and are "
                "compared whole anyway; prefixes have to be shorter."
            )
        if momentum:
            raise ConfigError(
                "config.loss.matryoshka does not go with config.momentum, whose keys are whole."
            )

    def check_negatives(self, negatives: int) -> None:
        """Raises :class:`ConfigError` where pairs come with ``negatives`` and the loss has no use
        for them, or the other way round."""
        where = f"config.loss.name = {self.name!r}"
        if negatives and self.name not in TAKE_NEGATIVES:
            raise ConfigError(
                f"{where} takes no negatives beside the pairs (config.data.negatives = "
                f"{negatives}); {', '.join(TAKE_NEGATIVES)} do."
            )
        if negatives and self.mining is not None:
            raise ConfigError(
                f"config.loss.mining = {self.mining!r} finds negatives in the batch; "
                f"config.data.negatives = {negatives} brings others. Choose one."
            )
        if self.name == "triplet" and not negatives and self.mining is None:
            raise ConfigError(
                f"{where} needs negatives: set config.data.negatives (pairs of texts), or "
                "config.loss.mining = 'batch_hard' or 'batch_all'."
            )
        if self.name == "relevance" and not negatives:
            raise ConfigError(
                f"{where} tells a pair from its negatives: set config.data.negatives, and where "
                "they come from (config.data.fields.negatives, negatives_file or negatives_index)."
            )
        alone = self.name in ("triplet", "relevance")
        if not self.share_negatives and (not negatives or alone):
            raise ConfigError(
                "config.loss.share_negatives = False has no effect: "
                + ("there are none." if not negatives else f"{self.name} never shares them.")
            )

    def check_judged(self, *, labels: int, joined: bool) -> None:
        """Raises :class:`ConfigError` where pairs are labelled or joined and the loss has no use
        for it, or the other way round."""
        where = f"config.loss.name = {self.name!r}"
        if bool(labels) != (self.name == "classifier"):
            raise ConfigError(
                f"{where} needs the labels of the pairs: set config.data.fields.labels."
                if not labels
                else f"{where} reads no labels (config.data.fields.labels); 'classifier' does."
            )
        if joined and self.name not in JUDGES:
            raise ConfigError(
                f"{where} compares rows of two texts; config.data.joined = True makes one row of "
                f"them, which {' and '.join(JUDGES)} judge."
            )
        if self.name == "relevance" and not joined:
            raise ConfigError(f"{where} scores joined texts: set config.data.joined = True.")


def scale_limit(config: LossConfig) -> float | None:
    """The largest scale: what the config says, else CLIP's 100 for softmax, none for sigmoid."""
    if config.max_scale is not None:
        return config.max_scale
    return None if config.name == "siglip" else 100.0


def start_values(config: LossConfig, batch_size: int) -> tuple[float, float | None]:
    """Scale and bias at step 0; the bias is None for softmax losses."""
    family = "sigmoid" if config.name == "siglip" else "softmax"
    scale = config.scale_init or math.exp(initial_log_scale(family))
    if config.name != "siglip":
        return scale, None
    return scale, initial_bias(
        "sigmoid" if config.bias_init is None else config.bias_init, batch_size
    )


def make_partition(config: LossConfig, mesh: jax.sharding.Mesh) -> LogitPartition | None:
    """How the logits are cut; None lets the loss read it from the inputs' types."""
    if config.exchange is None:
        return None
    cut = batch_parts(mesh) > 1
    return LogitPartition(
        mesh=mesh if cut else None,
        axes=BATCH_AXES if cut else None,
        exchange=config.exchange,
        block_rows=config.block_rows,
        block_cols=config.block_cols,
    )
