"""Settings of reading tars one after another."""

import dataclasses

from contrastive.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamConfig:
    """How tars are read where reads at random places are too slow; what it does to the order is in
    :mod:`contrastive.data.lanes`."""

    # So many windows of tars are read at a time, over all processes: a multiple of their number. 0:
    # samples come from anywhere in all tars.
    lanes: int = 0
    window: int = 4  # tars whose samples are shuffled with each other
    cache_gib: float = 32.0  # room for copies of remote tars, in config.data.cache

    def __post_init__(self) -> None:
        if self.lanes < 0 or self.window < 1 or not self.cache_gib > 0:
            raise ConfigError(
                f"config.data.stream: lanes = {self.lanes} cannot be negative, window = "
                f"{self.window} has to be at least 1, cache_gib = {self.cache_gib} positive."
            )
