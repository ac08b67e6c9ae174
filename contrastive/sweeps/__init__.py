"""Sweeps: many training runs from one file (:mod:`contrastive.sweeps.description` says how)."""

from contrastive.sweeps.description import (
    IntUniform,
    LogUniform,
    Sweep,
    Uniform,
    grid,
    product,
    random,
    zipped,
)

__all__ = [
    "IntUniform",
    "LogUniform",
    "Sweep",
    "Uniform",
    "grid",
    "product",
    "random",
    "zipped",
]
