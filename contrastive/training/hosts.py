"""Batches that are checked before a step: every process has to deliver the same shapes."""

import json
from typing import Any

import numpy as np

from contrastive.errors import DataError
from contrastive.processes import Processes
from contrastive.training.loop import Batches


class SameShapes:
    """Passes batches on, after making sure that nothing can be mixed up or hang.

    The shapes of the first batch are compared over all processes, those of every other batch with
    the first.

    Args:
      batches: This process's loader.
      processes: Those that train together.
    """

    def __init__(self, batches: Batches, processes: Processes) -> None:
        self._batches, self._processes = batches, processes
        self._shapes: dict[str, list[int]] | None = None

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next(self._batches)
        shapes = {name: list(rows.shape) for name, rows in batch.items()}
        if self._shapes is None:
            self._compare(shapes)
            self._shapes = shapes
        elif shapes != self._shapes:
            raise DataError(
                f"process {self._processes.index} has a batch of {_words(shapes)} before step "
                f"{self.state()['step']}; the batches before were {_words(self._shapes)}."
            )
        return batch

    def state(self) -> dict[str, Any]:
        """The position of the loader."""
        return self._batches.state()

    def _compare(self, shapes: dict[str, list[int]]) -> None:
        everyone = [
            json.loads(text)
            for text in self._processes.gather(json.dumps(shapes), "comparing batches")
        ]
        if any(one != everyone[0] for one in everyone):
            listed = "; ".join(f"process {i}: {_words(one)}" for i, one in enumerate(everyone))
            raise DataError(f"the processes have batches of different shapes: {listed}.")


def _words(shapes: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
