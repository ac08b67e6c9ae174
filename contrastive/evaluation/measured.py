"""What a measurement gives: numbers, and what they are the means of."""

from collections.abc import Mapping

import numpy as np

Value = float | str | None
"""A number; a word about how it was measured; None where a number is not defined."""


class Measured(dict[str, Value]):
    """``{"METRIC": value}``, and for metrics that are means the value of each query or example.

    A metric that correlates two lists has these lists, ``[2, pairs]``, in the place of values.
    :func:`contrastive.evaluation.bootstrap.interval` needs them.

    Attributes:
      each: ``{"METRIC": values}`` in the order of the queries.
      drawn: Lists that pages draw: histograms and spectra.
    """

    def __init__(
        self,
        values: Mapping[str, Value] = {},
        each: Mapping[str, np.ndarray] | None = None,
        drawn: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(values)
        self.each: dict[str, np.ndarray] = dict(each or {})
        self.drawn: dict[str, np.ndarray] = dict(drawn or {})

    def add(self, other: Mapping[str, Value], prefix: str = "") -> "Measured":
        """Takes over what another measured, its names after ``prefix/``; returns itself."""
        start = f"{prefix}/" if prefix else ""
        self.update({f"{start}{name}": value for name, value in other.items()})
        if isinstance(other, Measured):
            self.each |= {f"{start}{name}": values for name, values in other.each.items()}
            self.drawn |= {f"{start}{name}": values for name, values in other.drawn.items()}
        return self

    def mean(self, name: str, values: np.ndarray) -> None:
        """A metric that is the mean of these values."""
        self[name] = float(np.mean(values, dtype=np.float64))
        self.each[name] = np.asarray(values)
