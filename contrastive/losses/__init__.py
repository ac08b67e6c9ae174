"""Contrastive losses: pure functions of unit rows, each a few lines over `contrastive.logits`."""

from contrastive.losses.classifier import (
    classifier_loss,
    label_loss,
    pair_features,
    relevance_loss,
)
from contrastive.losses.sigmoid import sigmoid_loss
from contrastive.losses.softmax import (
    clip_loss,
    decoupled_loss,
    gte_loss,
    info_nce,
    multi_positive_loss,
    nt_xent,
)
from contrastive.losses.triplet import triplet_loss

__all__ = [
    "classifier_loss",
    "clip_loss",
    "decoupled_loss",
    "gte_loss",
    "info_nce",
    "label_loss",
    "multi_positive_loss",
    "nt_xent",
    "pair_features",
    "relevance_loss",
    "sigmoid_loss",
    "triplet_loss",
]
