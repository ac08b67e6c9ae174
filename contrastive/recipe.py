"""The root of the settings: one recipe describes one run, from the data to the report."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from contrastive import config as config_lib
from contrastive.data.config import DataConfig
from contrastive.data.transforms import PIXEL_STATISTICS
from contrastive.errors import ConfigError, UserError
from contrastive.evaluation.suite import EvaluationConfig
from contrastive.mesh import MeshConfig
from contrastive.objectives import JUDGES, LossConfig, MomentumConfig
from contrastive.towers import (
    ConvNeXtConfig,
    ConvTowerConfig,
    NaFlexConfig,
    ResNetConfig,
    TwoTowerConfig,
)
from contrastive.training.checkpoint import EVALUATED, CheckpointConfig
from contrastive.training.logs import LogConfig
from contrastive.training.optimizer import OptimizerConfig
from contrastive.whole import whole_file


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a step is carried out. Nothing here changes what it computes."""

    microbatches: int = 1  # chunks that the encoders run in; the loss is of the whole batch
    watchdog_seconds: float | None = 600.0  # a step that takes longer ends the run; None: no limit
    # The same for what is not a step: reading the data, compiling the first step, a batch of an
    # evaluation, a save; None: no limit
    patience_seconds: float | None = 1800.0
    profile: str | None = None  # "start:stop": these steps are traced, into WORKDIR/profile

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise ConfigError(
                f"config.train.microbatches = {self.microbatches} has to be at least 1."
            )
        for name in ("watchdog_seconds", "patience_seconds"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ConfigError(f"config.train.{name} has to be positive, or None.")
        self.profiled()

    def profiled(self) -> range | None:
        """The steps to trace; None: none."""
        if self.profile is None:
            return None
        start, colon, stop = self.profile.partition(":")
        if colon and start.isdecimal() and stop.isdecimal() and 0 < int(start) <= int(stop):
            return range(int(start), int(stop) + 1)
        raise ConfigError(
            f"config.train.profile = {self.profile!r} has to be START:STOP, the first and the last "
            "step to trace, such as 20:25."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that a run is made from. The resolved form is saved as ``config.json``."""

    name: str  # how pages and tables call the run
    seed: int = 0  # of the initialisation, the order of the data, augmentation and dropout
    total_steps: int  # optimizer updates; the schedule ends here
    stop_at: int | None = None  # stop (with a checkpoint) after this step; the schedule is unmoved
    batch_size: int = 256  # pairs a step, over all devices
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: TwoTowerConfig = dataclasses.field(default_factory=TwoTowerConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    momentum: MomentumConfig = dataclasses.field(default_factory=MomentumConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    # Folder of an earlier run, or of another library's weights, whose parameters this one starts
    # with
    init_from: str | None = None
    average_decay: float | None = None  # moving average of the parameters, used by evaluation
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = dataclasses.field(default_factory=CheckpointConfig)
    eval: EvaluationConfig = dataclasses.field(default_factory=EvaluationConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)

    def __post_init__(self) -> None:
        for name in ("total_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"config.{name} = {getattr(self, name)} has to be at least 1.")
        if self.total_steps >= 2**31:
            raise ConfigError(
                f"config.total_steps = {self.total_steps} has to be less than 2^31: steps are "
                "counted in 32 bits."
            )
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"config.seed = {self.seed} has to lie between 0 and 2^32 - 1.")
        if self.stop_at is not None and not 0 < self.stop_at <= self.total_steps:
            raise ConfigError(
                f"config.stop_at = {self.stop_at} has to lie between 1 and config.total_steps = "
                f"{self.total_steps}."
            )
        if self.average_decay is not None and not 0 < self.average_decay < 1:
            raise ConfigError("config.average_decay has to lie between 0 and 1, or be None.")
        self._check_length()
        self._check_parts()
        self._check_pixels()
        self._check_proportions()
        self._check_best()

    def _check_length(self) -> None:
        """The run is long enough for what is asked of its steps."""
        traced, accumulate = self.train.profiled(), self.optimizer.accumulate
        if traced is not None and traced.start > self.total_steps:
            raise ConfigError(
                f"config.train.profile = {self.train.profile!r} begins after the last step, "
                f"config.total_steps = {self.total_steps}."
            )
        if accumulate > self.total_steps:
            raise ConfigError(
                f"config.optimizer.accumulate = {accumulate} batches make an update and the run "
                f"has config.total_steps = {self.total_steps}: nothing would be learned."
            )

    def _check_parts(self) -> None:
        """Data, model, loss and momentum encoder go with each other."""
        self.model.check_pairs(self.data.pairs)
        self.loss.check_negatives(self.data.negatives)
        self.loss.check_judged(labels=len(self.data.fields.labels), joined=self.data.joined)
        self._check_judged()
        if self.data.query_length is not None and not self.model.masks_padding:
            raise ConfigError(
                "config.data.query_length: this tower reads padding, so all its texts are of one "
                "length; config.model.text.padding = 'masked' goes with it."
            )
        self.momentum.check(
            loss=self.loss.name,
            batch_size=self.batch_size,
            negatives=self.data.negatives,
            accumulate=self.optimizer.accumulate,
        )
        dim = (self.model.head.output if self.model.head.layers else 0) or self.model.embedding_dim
        self.loss.check_rows(dim, momentum=self.momentum.on)
        if self.model.predictor.layers and not self.momentum.on:
            raise ConfigError(
                "config.model.predictor stands between queries and the keys of a momentum encoder; "
                "config.momentum.decay is None."
            )
        if self.data.views.small and self.loss.name in ("triplet", "siglip"):
            raise ConfigError(
                "config.data.views.small: crops are compared by a softmax; config.loss.name is "
                f"{self.loss.name!r}."
            )
        image = self.model.image
        any_size = isinstance(image, ConvTowerConfig | ConvNeXtConfig) or (
            isinstance(image, ResNetConfig) and image.form != "clip"
        )
        if self.data.views.small and not any_size:
            raise ConfigError(
                "config.data.views.small: other towers take pictures of one size; crops of another "
                "need config.model.image.kind = 'conv', 'convnext', or 'resnet' without attention "
                "pooling."
            )
        chunks = self.train.microbatches
        if chunks > 1 and isinstance(image, ResNetConfig) and image.statistics == "batch":
            raise ConfigError(
                f"config.train.microbatches = {chunks}: with config.model.image.statistics = "
                "'batch' the tower needs the whole batch at once; 'fixed' goes with chunks."
            )

    def _check_judged(self) -> None:
        """A layer that judges pairs stands right behind the tower."""
        if self.loss.name not in JUDGES:
            return
        where = f"config.loss.name = {self.loss.name!r}"
        if self.model.head.layers:
            raise ConfigError(f"{where} has a layer of its own; config.model.head has no effect.")
        if self.data.joined and not self.model.shared:
            raise ConfigError(
                "config.data.joined = True needs one tower: config.model.shared has to be True."
            )

    def _check_best(self) -> None:
        """A checkpoint can be the best by a number only if that is measured where one is saved."""
        best, saved = self.checkpoint.best, self.checkpoint.every
        if best is None:
            return
        group = "eval" if best.startswith(EVALUATED) else "log"
        measured = self.eval.every if group == "eval" else self.log.every
        if not measured:
            raise ConfigError(
                f"config.checkpoint.best = {best!r} needs evaluations during the run; "
                "config.eval.every is 0."
            )
        if not saved or (saved % measured and measured % saved):
            raise ConfigError(
                f"config.checkpoint.best = {best!r} is measured every {measured} steps "
                f"(config.{group}.every) and checkpoints are written every {saved} "
                "(config.checkpoint.every): one has to be a multiple of the other."
            )

    def _check_proportions(self) -> None:
        """Pictures in their own proportions go with the tower that takes them."""
        image, data = self.model.image, self.data
        if image is None or data.pairs == "texts":
            return
        flexible = isinstance(image, NaFlexConfig)
        if flexible != (data.preprocessing == "naflex"):
            raise ConfigError(
                "config.data.preprocessing = 'naflex' and config.model.image.kind = 'naflex' go "
                f"together; given are {data.preprocessing!r} and {image.kind!r}."
            )
        if flexible and image.patch_size != data.resize.patch:
            raise ConfigError(
                f"config.data.resize.patch = {data.resize.patch} has to be that of the tower, "
                f"config.model.image.patch_size = {image.patch_size}."
            )

    def _check_pixels(self) -> None:
        """The pictures of a published model go with its pixel statistics."""
        wanted = PIXEL_STATISTICS.get(self.data.preprocessing)
        given = self.model.pixel_mean, self.model.pixel_std
        if wanted is not None and given != wanted:
            raise ConfigError(
                f"config.data.preprocessing = {self.data.preprocessing!r} goes with "
                f"config.model.pixel_mean = {wanted[0]} and config.model.pixel_std = {wanted[1]}; "
                f"given are {given[0]} and {given[1]}."
            )


# What may differ when a run is resumed: cadences, logging and where it runs.
RESUMABLE = (
    "name",
    "stop_at",
    "train",
    "mesh",
    "checkpoint",
    "eval",
    "log",
    "data.cache",
    "data.threads",
    "data.prefetch",
    "data.memory_mib",
    "data.stream.cache_gib",
)


def load_recipe(spec: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of ``FILE.py:ARGUMENT`` with ``--config.key=value`` overrides applied."""
    return config_lib.resolve(Recipe, config_lib.load_file(spec), overrides)


def read_recipe(workdir: pathlib.Path | str) -> Recipe:
    """The resolved recipe of a run.

    Raises:
      UserError: ``workdir`` is not the folder of a run, or its ``config.json`` is damaged.
    """
    file = pathlib.Path(workdir) / "config.json"
    if not file.is_file():
        raise UserError(f"{workdir} is not the folder of a run: there is no {file}.")
    try:
        settings = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged: {error}.") from error
    if not isinstance(settings, dict):
        raise UserError(f"{file} is damaged: it holds no settings.")
    return config_lib.build(Recipe, settings)


def write_recipe(workdir: pathlib.Path, recipe: Recipe) -> None:
    """Saves the resolved recipe as ``config.json``."""
    text = json.dumps(config_lib.to_dict(recipe), indent=2) + "\n"
    with whole_file(workdir / "config.json") as path:
        path.write_text(text)


def check_resumable(old: Recipe, new: Recipe, workdir: pathlib.Path | str) -> None:
    """Raises :class:`ConfigError` if the runs differ in something that changes the result."""
    before, after = flatten(config_lib.to_dict(old)), flatten(config_lib.to_dict(new))
    changed = [
        key
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
        and not any(key == free or key.startswith(f"{free}.") for free in RESUMABLE)
    ]
    if changed:
        listed = "; ".join(f"{k} was {before.get(k)!r}, now {after.get(k)!r}" for k in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise ConfigError(
            f"{workdir} holds a run of another configuration ({listed}{more}). Choose another "
            "--workdir, or start anew with --new (the old run is kept beside it)."
        )


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, with keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
