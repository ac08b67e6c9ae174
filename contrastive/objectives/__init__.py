"""Objectives: from a model and a batch to a loss and the numbers that people watch.

An objective runs the towers on the views of the pairs, brings their rows to unit length, reads the
scale from the model and calls a loss by the name in the config. It is a pure function of (model,
batch, key). Which entries of a batch are views, and which tower reads them, is
:mod:`contrastive.objectives.views`; which loss takes them, :mod:`contrastive.objectives.pairs`; a
momentum encoder and its queue, :mod:`contrastive.objectives.momentum`; labels and scores of pairs,
:mod:`contrastive.objectives.judged`.
"""

from contrastive.objectives.config import (
    JUDGES,
    LOSS_SCOPE,
    LossConfig,
    make_partition,
    scale_limit,
    start_values,
)
from contrastive.objectives.momentum import Memory, Momentum, MomentumConfig
from contrastive.objectives.pairs import Objective, make_objective
from contrastive.objectives.views import Batch

__all__ = [
    "JUDGES",
    "LOSS_SCOPE",
    "Batch",
    "LossConfig",
    "Memory",
    "Momentum",
    "MomentumConfig",
    "Objective",
    "make_objective",
    "make_partition",
    "scale_limit",
    "start_values",
]
