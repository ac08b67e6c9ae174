"""The order of samples where tars are read one after another instead of at random places.

The tars are shuffled; ``window`` neighbours are shuffled with each other, sample by sample. The row
of samples that comes out is cut into as many lanes of equal length, and a batch takes as many
samples of each: at any time each lane reads in one window. Process i of n takes the i-th n-th of
the rows, thus of the lanes, and meets the tars of its own lanes only (where n divides the lanes).

Which sample comes at a position is still a pure function of (seed, position), whatever the number
of processes: the lanes are part of the settings, not of the machine.
"""

import functools
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int64

from contrastive.data.draws import shuffle_seed
from contrastive.errors import ConfigError

_ENDLESS = 1 << 50  # more samples than any run sees


class _Epoch(NamedTuple):
    """The tars of an epoch.

    Attributes:
      shards: Their numbers, shuffled.
      ends: How many samples there are up to the end of each window of them.
      seed: Of the shuffling inside the windows.
    """

    shards: Int64[np.ndarray, " shards"]
    ends: Int64[np.ndarray, " windows"]
    seed: int


class Lanes:
    """Which sample comes at which position.

    Args:
      starts: Number of the first sample of each tar, and the number of all.
      lanes: How many windows are read at a time.
      window: Tars that are shuffled with each other.
      batch_size: Rows of the global batch.
      seed: Of the run.

    Raises:
      ConfigError: The batch does not divide over the lanes.
    """

    def __init__(
        self,
        starts: Int64[np.ndarray, " edges"],
        *,
        lanes: int,
        window: int,
        batch_size: int,
        seed: int,
    ) -> None:
        if batch_size % lanes:
            raise ConfigError(
                f"config.batch_size = {batch_size} does not divide over config.data.stream.lanes = "
                f"{lanes}."
            )
        self._starts, self._window, self._seed = starts, window, seed
        self._batch, self._share = batch_size, batch_size // lanes
        self._steps = int(starts[-1]) // batch_size  # of an epoch; what is left over changes
        self._epoch = functools.lru_cache(maxsize=2)(self._epoch_of)
        self._order = functools.lru_cache(maxsize=2 * lanes)(self._order_of)

    def __getitem__(self, position: int) -> int:
        """The number of the sample at a position of the run."""
        step, row = divmod(position, self._batch)
        epoch, step = divmod(step, self._steps)
        lane, within = divmod(row, self._share)
        return self._sample(epoch, (lane * self._steps + step) * self._share + within)

    def order(self) -> grain.MapDataset[int]:
        """The same, without end."""
        return grain.MapDataset.range(_ENDLESS).map(lambda position: self[int(position)])

    def _sample(self, epoch: int, place: int) -> int:
        ends = self._epoch(epoch).ends
        window = int(np.searchsorted(ends, place, side="right"))
        begin = int(ends[window - 1]) if window else 0
        return int(self._order(epoch, window)[place - begin])

    def _epoch_of(self, epoch: int) -> _Epoch:
        rng = np.random.default_rng([shuffle_seed(self._seed), epoch])
        shards = rng.permutation(len(self._starts) - 1)
        sizes = np.diff(self._starts)[shards]
        ends = np.cumsum(np.add.reduceat(sizes, np.arange(0, len(shards), self._window)))
        return _Epoch(shards, ends, int(rng.integers(1 << 62)))

    def _order_of(self, epoch: int, window: int) -> Int64[np.ndarray, " samples"]:
        found = self._epoch(epoch)
        chosen = found.shards[window * self._window : (window + 1) * self._window]
        samples = [np.arange(int(self._starts[i]), int(self._starts[i + 1])) for i in chosen]
        rng = np.random.default_rng([found.seed, window])
        return rng.permutation(np.concatenate(samples))
