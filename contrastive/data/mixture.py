"""Several sources as one, in fixed proportions.

The samples of all parts stand behind one another; the order takes from each by its weight. Position
p of the order is a pure function of (seed, p), as for one source: parts take turns evenly, each
goes through its own permutation and, when it is through, through another one. (Where one ends
inside a batch, a sample may come twice in it: the two have one content id.)
"""

import hashlib
from collections.abc import Sequence

import grain
import numpy as np
from jaxtyping import Int64

from contrastive.data.draws import shuffle_seed
from contrastive.data.records import DataErrors, IndexedSource, Record, SampleError, Source
from contrastive.data.records import TextSource as _TextSource
from contrastive.errors import DataError


class Mixture:
    """The records of several sources.

    Args:
      parts: Name, weight and records of each.

    Attributes:
      names: Of the parts.
      weights: Their shares; the sum is 1.
      starts: Number of the first sample of each part, and the number of all.
    """

    def __init__(self, parts: Sequence[tuple[str, float, Source]]) -> None:
        self.names = [name for name, _, _ in parts]
        weights = np.array([weight for _, weight, _ in parts])
        self.weights = (weights / weights.sum()).tolist()
        self._sources = [source for _, _, source in parts]
        self.starts = np.cumsum([0, *(len(s) for s in self._sources)], dtype=np.int64)
        self.errors = DataErrors()
        digest = hashlib.blake2b(repr((self.names, self.weights)).encode(), digest_size=8)
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
        """Caption and keywords of a sample, without its picture where its source can do that."""
        part, row = self._place(index)
        source = self._sources[part]
        if isinstance(source, _TextSource):
            return source.text(row)
        record = source[row]
        return record["caption"], record["keywords"]

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
        parts: list[grain.MapDataset[int]] = []
        for i, name in enumerate(self.names):
            begin, end = int(edges[i]), int(edges[i + 1])
            if end - begin < batch_size * self.weights[i]:
                raise DataError(
                    f"The part {name!r} of the mixture has {end - begin:,} usable samples, fewer "
                    f"than its weight puts into one batch of {batch_size}. Lower its weight or "
                    "config.batch_size."
                )
            own = grain.MapDataset.range(begin, end).shuffle(seed=shuffle_seed(seed + 7919 * i))
            parts.append(own.repeat())
        return grain.MapDataset.mix(parts, self.weights)

    def counts(self, samples: int, usable: Sequence[int]) -> dict[str, dict[str, int | float]]:
        """Samples and epochs of each part after so many samples of the order (to within one)."""
        return {
            name: {"samples": round(samples * weight), "epochs": samples * weight / size}
            for name, weight, size in zip(self.names, self.weights, usable, strict=True)
        }
