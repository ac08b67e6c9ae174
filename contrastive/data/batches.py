"""What loaders of training batches have in common: parts of a batch, and a position in the data."""

import abc
from typing import Any

import grain
import numpy as np

from contrastive.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]


class Batches(abc.ABC):
    """Batches without end, of which process i of n delivers the i-th n-th of the rows.

    Subclasses set ``_iterator``, grain's, and define ``fingerprint`` and ``__next__``.

    Raises:
      ConfigError: The batch does not divide over the processes.
    """

    _iterator: Any

    def __init__(
        self, *, batch_size: int, seed: int, process_index: int, process_count: int
    ) -> None:
        if batch_size % process_count:
            raise ConfigError(
                f"config.batch_size = {batch_size} does not divide over {process_count} processes."
            )
        self._batch_size, self._seed = batch_size, seed
        self._rows = batch_size // process_count
        self._part = (process_index, process_count)

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Changes with the data that the batches are made of."""

    def __iter__(self) -> "Batches":
        return self

    @abc.abstractmethod
    def __next__(self) -> Batch: ...

    @property
    def step(self) -> int:
        """Batches delivered so far, over all runs of this loader's history."""
        return grain.experimental.get_next_index(self._iterator)

    def state(self) -> dict[str, Any]:
        """The position, ready for JSON. It does not depend on the process or their number."""
        return {
            "step": self.step,
            "seed": self._seed,
            "batch_size": self._batch_size,
            "fingerprint": self.fingerprint,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues with the batch that follows ``state``.

        Raises:
          DataError: The state belongs to other data, another seed or another batch size.
        """
        now = self.state()
        changed = [key for key in ("seed", "batch_size", "fingerprint") if state[key] != now[key]]
        if changed == ["fingerprint"]:
            raise DataError(
                "The data has changed since the checkpoint was written (samples, captions or which "
                "of them can be read): the run cannot go on exactly. Restore the data or start a "
                "new run."
            )
        if changed:
            key = changed[0]
            raise DataError(
                f"The checkpoint's data position was written with {key} = {state[key]}, this run "
                f"has {now[key]}."
            )
        grain.experimental.set_next_index(self._iterator, state["step"])

    def close(self) -> None:
        """Stops the threads; batches that are being prepared are thrown away."""
        self._iterator.close()
