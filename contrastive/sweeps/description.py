"""What a sweep consists of: a recipe, and the settings of its trials.

A sweep is a Python file with ``get_sweep(argument)``, as a recipe is one with ``get_config``::

    from contrastive.sweeps import Sweep, grid, product, zipped

    def get_sweep():
        rates = grid({"optimizer.learning_rate": (1e-3, 1e-4)})
        sizes = zipped({"batch_size": (8, 16), "total_steps": (200, 100)})
        return Sweep(
            name="rates",
            base="configs/emoji.py:clip",
            settings=product(rates, sizes),
            seeds=(0, 1, 2),
            metric="unseen_artist/image_to_text/recall@1",
        )

Settings are tuples of ``{"KEY": value}``, keys as after ``--config.``; ``+`` puts two such tuples
one after another.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from contrastive.config import load_file
from contrastive.errors import ConfigError

Settings: TypeAlias = tuple[dict[str, Any], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """A family of training runs.

    Raises:
      ConfigError: There is no trial, a number is out of range, or a key is set twice.
    """

    name: str  # how tables call the sweep
    base: str  # the recipe that every trial starts from, FILE.py or FILE.py:ARGUMENT
    settings: Settings = ({},)  # what differs from trial to trial
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the same in every trial
    seeds: tuple[int, ...] = ()  # every setting with each of them; (): the recipe's seed
    metric: str = "train/loss"  # a key of evaluation.json, or train/KEY of the last logged step
    direction: Literal["max", "min"] | None = None  # which is best; None: min of a loss, else max
    parallel: int = 1  # trials at a time, where memory allows
    retries: int = 1  # how often a failed trial is started again
    processes: int = 1  # processes of one trial

    def __post_init__(self) -> None:
        for name, least in (("parallel", 1), ("retries", 0), ("processes", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"sweep.{name} = {value!r}; a whole number from {least} on.")
        if isinstance(self.settings, Mapping) or not all(
            isinstance(one, Mapping) for one in self.settings
        ):
            raise ConfigError(
                f"the sweep {self.name!r}: settings have to be a tuple of {{'KEY': value}}, as "
                "grid, zipped, random and product make."
            )
        if self.direction not in ("max", "min", None):
            raise ConfigError(f"sweep.direction = {self.direction!r} has to be 'max' or 'min'.")
        if not self.settings:
            raise ConfigError(f"the sweep {self.name!r} has no trials: its settings are empty.")
        for one in self.settings:
            twice = [key for key in one if key in self.fixed]
            if self.seeds and ("seed" in one or "seed" in self.fixed):
                twice.append("seed")
            if twice:
                raise ConfigError(f"the sweep {self.name!r} sets {twice[0]!r} twice.")

    @property
    def best_is(self) -> Literal["max", "min"]:
        """Which value of the metric is the best."""
        return self.direction or ("min" if self.metric.endswith("loss") else "max")

    def trials(self) -> Settings:
        """The settings of every trial without :attr:`fixed`; all of the first seed come first."""
        seeds: Settings = tuple({"seed": seed} for seed in self.seeds) or ({},)
        return tuple({**one, **seed} for seed in seeds for one in self.settings)


def grid(choices: Mapping[str, Sequence[Any]]) -> Settings:
    """Every combination; the last key changes fastest."""
    return tuple(
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    )


def zipped(choices: Mapping[str, Sequence[Any]]) -> Settings:
    """The first value of each key, then the second of each, …

    Raises:
      ConfigError: The keys have different numbers of values.
    """
    lengths = {key: len(values) for key, values in choices.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise ConfigError(f"zipped: every key needs as many values as the others; {listed}.")
    return tuple(
        dict(zip(choices, values, strict=True)) for values in zip(*choices.values(), strict=True)
    )


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Numbers between two others."""

    low: int | float
    high: int | float

    def draw(self, rng: np.random.Generator) -> float:
        return _rounded(rng.uniform(self.low, self.high))


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """Positive numbers whose logarithm is uniform."""

    low: int | float
    high: int | float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ConfigError(f"LogUniform({self.low}, {self.high}): 0 < low <= high is expected.")

    def draw(self, rng: np.random.Generator) -> float:
        return _rounded(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


@dataclasses.dataclass(frozen=True)
class IntUniform:
    """Whole numbers, both ends included."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


def random(
    choices: Mapping[str, Uniform | LogUniform | IntUniform | Sequence[Any]],
    *,
    count: int,
    seed: int = 0,
) -> Settings:
    """``count`` settings with every key drawn by itself: from a distribution, or of a sequence.

    The draws are a function of the seed; with a larger count the first ones stay.
    """

    def draw(choice: Any, rng: np.random.Generator) -> Any:
        if isinstance(choice, Uniform | LogUniform | IntUniform):
            return choice.draw(rng)
        return choice[int(rng.integers(len(choice)))]

    streams = [np.random.default_rng((seed, number)) for number in range(count)]
    return tuple({key: draw(choice, rng) for key, choice in choices.items()} for rng in streams)


def product(*parts: Settings) -> Settings:
    """Every settings of the first part with every one of the next.

    Raises:
      ConfigError: Two parts set the same key.
    """
    found: Settings = ({},)
    for part in parts:
        if twice := {key for one in found for key in one} & {key for one in part for key in one}:
            raise ConfigError(f"product: two parts set {min(twice)!r}.")
        found = tuple({**one, **other} for one in found for other in part)
    return found


def load_sweep(spec: str) -> Sweep:
    """Runs ``get_sweep`` of ``FILE.py`` or ``FILE.py:ARGUMENT``.

    Raises:
      ConfigError: There is no such file, or it gives no :class:`Sweep`.
    """
    found = load_file(spec, function="get_sweep", option="sweep ")
    if not isinstance(found, Sweep):
        raise ConfigError(f"{spec}: get_sweep has to return a Sweep; got {type(found).__name__}.")
    return found


def _rounded(value: float) -> float:
    """Four digits say enough of a random number, and can be read."""
    return float(f"{value:.4g}")
