"""Settings of negatives that the model finds as it trains."""

import dataclasses

from contrastive.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinedConfig:
    """ANCE (Xiong et al. 2021, https://arxiv.org/abs/2007.00808): every so many steps a copy of the
    model is set aside, ranks all passages for all queries beside training, and what it ranks high
    is the negatives of the steps after the next refresh. Which copy is in force is a function of
    the step alone."""

    every: int = 0  # steps between refreshes; 0: negatives are those that the data have
    start: int | None = None  # the first step whose model mines, a multiple of every; None: every
    candidates: int = 20  # negatives of a pair that are kept; batches draw among them
    skip: int = 0  # so many of the best passages are left out
    window: int = 100  # passages beyond this rank are not looked at
    margin: float | None = None  # a negative's cosine is at least so much below the positive's
    max_score: float | None = None  # a negative's cosine is at most this

    def __post_init__(self) -> None:
        if not self.every:
            if any(getattr(self, f.name) != f.default for f in dataclasses.fields(self)):
                raise ConfigError(
                    "config.data.mined has settings, but config.data.mined.every is 0."
                )
            return
        if self.every < 0:
            raise ConfigError(f"config.data.mined.every = {self.every} cannot be negative.")
        if self.start is not None and (self.start < self.every or self.start % self.every):
            raise ConfigError(
                f"config.data.mined.start = {self.start} has to be a multiple of "
                f"config.data.mined.every = {self.every}, or None."
            )
        if self.candidates < 1 or self.skip < 0 or self.window < self.skip + self.candidates:
            raise ConfigError(
                f"config.data.mined takes {self.candidates} passages from rank {self.skip + 1} to "
                f"{self.window}: candidates has to be at least 1, and window at least skip + "
                "candidates."
            )

    @property
    def first(self) -> int:
        """The first step whose model mines."""
        return self.every if self.start is None else self.start
