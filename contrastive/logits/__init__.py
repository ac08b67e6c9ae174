"""Reductions of the matrix of logits ``scale · A Bᵀ``, cut over devices and blocks."""

from contrastive.logits.dense import logsumexp
from contrastive.logits.partition import LogitPartition
from contrastive.logits.statistics import RowStatistics, merge

__all__ = ["LogitPartition", "RowStatistics", "logsumexp", "merge"]
