"""Reductions of the matrix of logits ``scale · A Bᵀ``, cut over devices and blocks."""

from contrastive.logits.logsumexp import logsumexp
from contrastive.logits.partition import LogitPartition
from contrastive.logits.softplus import softplus
from contrastive.logits.statistics import RowStatistics, merge

__all__ = ["LogitPartition", "RowStatistics", "logsumexp", "merge", "softplus"]
