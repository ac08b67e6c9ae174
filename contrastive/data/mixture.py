"""Several sources as one, in fixed proportions.

The samples of all parts stand behind one another; the order takes from each by its weight. Position
p of the order is a pure function of (seed, p), as for one source: parts take turns evenly, each
goes through its own permutation and, when it is through, through another one. (Where a permutation
ends inside a batch, a sample may come twice in it: the two have one content id.) A part may end
after some passes; the others then take its turns, in their proportions.
"""

import bisect
import fractions
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import grain
import numpy as np
from jaxtyping import Int64

from contrastive.data.draws import shuffle_seed
from contrastive.data.records import (
    DataErrors,
    IndexedSource,
    Record,
    SampleError,
    Source,
    words,
)
from contrastive.errors import DataError

_ENDLESS = 1 << 50  # more samples than any run sees


class Part(NamedTuple):
    """One source of a mixture; ``epochs``: passes after which it ends, None: it repeats."""

    name: str
    weight: float
    source: Source
    epochs: float | None = None


class Mixture:
    """The records of several sources.

    Args:
      parts: Of what it is made; for :meth:`order` one at least has to repeat.

    Attributes:
      names: Of the parts.
      weights: Their shares; the sum is 1.
      starts: Number of the first sample of each part, and the number of all.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.names = [part.name for part in parts]
        weights = np.array([part.weight for part in parts])
        self.weights = (weights / weights.sum()).tolist()
        self._epochs = [part.epochs for part in parts]
        self._sources = [part.source for part in parts]
        self.starts = np.cumsum([0, *(len(s) for s in self._sources)], dtype=np.int64)
        self.errors = DataErrors()
        about = self.names, self.weights, self._epochs
        digest = hashlib.blake2b(repr(about).encode(), digest_size=8)
        for source in self._sources:
            if isinstance(source, IndexedSource):
                self.errors.include(source.errors)
                digest.update(source.fingerprint.encode())
            else:
                digest.update(f"{type(source).__name__} {len(source)}".encode())
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int, /) -> Record:
        part, row = self._place(index)
        try:
            record = self._sources[part][row]
        except SampleError as error:
            key = f"{self.names[part]}: {error.key or f'sample {row}'}"
            raise SampleError(error.reason, error.detail, key=key) from error
        # Content ids of different sources have nothing to do with each other.
        return {**record, "id": -1, "key": f"{self.names[part]}: {record['key']}"}

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption and other words of a sample, without its picture where its source can do that."""
        part, row = self._place(index)
        return words(self._sources[part], row)

    def _place(self, index: int) -> tuple[int, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return part, index - int(self.starts[part])

    def order(
        self, usable: Int64[np.ndarray, " n"] | None, seed: int, batch_size: int
    ) -> grain.MapDataset[int]:
        """The order without end, as positions among the usable samples.

        Args:
          usable: The samples that can be used, in order; None: all.
          seed: Of the run.
          batch_size: No part may give more samples to a batch than it has.

        Raises:
          DataError: Nothing of a part can be used, or a part is too small for its weight.
        """
        edges = self.starts if usable is None else np.searchsorted(usable, self.starts)
        turns = self._turns(np.diff(edges).tolist())
        turns.check(self.names, batch_size)
        parts = [
            grain.MapDataset.range(begin, end).shuffle(seed=shuffle_seed(seed + 7919 * i)).repeat()
            for i, (begin, end) in enumerate(itertools.pairwise(edges.tolist()))
        ]

        def row(position: int) -> int:
            part, number = turns.at(int(position))
            found = parts[part][number]
            assert found is not None
            return found

        return grain.MapDataset.range(_ENDLESS).map(row)

    def counts(self, samples: int, usable: Sequence[int]) -> dict[str, dict[str, int | float]]:
        """Samples and epochs of each part after so many samples of the order."""
        taken = self._turns(tuple(usable)).taken(samples)
        return {
            name: {"samples": count, "epochs": count / size}
            for name, count, size in zip(self.names, taken, usable, strict=True)
        }

    def _turns(self, sizes: Sequence[int]) -> "_Turns":
        return _turns(tuple(self.weights), tuple(sizes), tuple(self._epochs))


class _Phase(NamedTuple):
    """A stretch of the order in which the same parts take turns.

    Attributes:
      begin: Its first position.
      taken: Samples of each part before it.
      active: The parts that take turns.
      shares: Their proportions, whole numbers.
    """

    begin: int
    taken: tuple[int, ...]
    active: tuple[int, ...]
    shares: tuple[int, ...]

    def counts(self, positions: int) -> tuple[int, ...]:
        """Samples of each part before the ``positions``-th of the phase, this phase's included."""
        taken = list(self.taken)
        for part, count in zip(self.active, _divide(positions, self.shares), strict=True):
            taken[part] += count
        return tuple(taken)


class _Turns:
    """Which part gives the sample at a position, and which of its samples.

    Whole numbers throughout, so that it is exact however far a run goes.
    """

    def __init__(
        self, weights: Sequence[float], sizes: Sequence[int], epochs: Sequence[float | None]
    ) -> None:
        exact = [fractions.Fraction(weight).limit_denominator(10**6) for weight in weights]
        whole = math.lcm(*(weight.denominator for weight in exact))
        self._shares = [int(weight * whole) for weight in exact]
        self._sizes = sizes
        limits = [
            None if passes is None else math.ceil(passes * size)
            for passes, size in zip(epochs, sizes, strict=True)
        ]
        self.phases: list[_Phase] = []
        begin, taken = 0, tuple(0 for _ in sizes)
        while True:
            active = tuple(i for i, most in enumerate(limits) if most is None or taken[i] < most)
            phase = _Phase(begin, taken, active, tuple(self._shares[i] for i in active))
            self.phases.append(phase)
            ends = [_first(phase, i, limit) for i in active if (limit := limits[i]) is not None]
            if not ends:
                break
            begin, taken = begin + min(ends), phase.counts(min(ends))

    def check(self, names: Sequence[str], batch_size: int) -> None:
        """Raises :class:`DataError` where a part gives a batch more samples than it has."""
        for phase in self.phases:
            for part, share in zip(phase.active, phase.shares, strict=True):
                if self._sizes[part] * sum(phase.shares) < batch_size * share:
                    ended = [name for i, name in enumerate(names) if i not in phase.active]
                    when = f" once {', '.join(map(repr, ended))} ended" if ended else ""
                    raise DataError(
                        f"The part {names[part]!r} of the mixture has {self._sizes[part]:,} usable "
                        f"samples, fewer than its weight puts into one batch of {batch_size}"
                        f"{when}. Lower its weight or config.batch_size."
                    )

    def at(self, position: int) -> tuple[int, int]:
        """The part, and how many of its samples came before."""
        phase = self._phase(position)
        before = phase.counts(position - phase.begin)
        after = phase.counts(position - phase.begin + 1)
        part = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
        return part, before[part]

    def taken(self, positions: int) -> tuple[int, ...]:
        """Samples of each part among so many first positions."""
        phase = self._phase(positions)
        return phase.counts(positions - phase.begin)

    def _phase(self, position: int) -> _Phase:
        begins = [phase.begin for phase in self.phases]
        return self.phases[bisect.bisect_right(begins, position) - 1]


_turns = functools.lru_cache(maxsize=8)(_Turns)


def _divide(positions: int, shares: Sequence[int]) -> list[int]:
    """How many of so many first positions belong to each share, as even as whole numbers can be.

    The first share takes its part of them, the next one its part of what is left, and so on: each
    count grows by 0 or 1 from position to position, and exactly one of them grows.
    """
    counts: list[int] = []
    total = sum(shares)
    for share in shares:
        left = positions * (total - share) // total
        counts.append(positions - left)
        positions, total = left, total - share
    return counts


def _first(phase: _Phase, part: int, limit: int) -> int:
    """After how many positions of a phase a part has given ``limit`` samples in all."""
    low, high = 0, 1
    while phase.counts(high)[part] < limit:
        low, high = high, 2 * high
    while low + 1 < high:
        middle = (low + high) // 2
        if phase.counts(middle)[part] < limit:
            low = middle
        else:
            high = middle
    return high
