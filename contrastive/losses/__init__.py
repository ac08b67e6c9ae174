"""Contrastive losses: pure functions of unit rows, each a few lines over `contrastive.logits`."""

from contrastive.losses.sigmoid import sigmoid_loss
from contrastive.losses.softmax import clip_loss, info_nce

__all__ = ["clip_loss", "info_nce", "sigmoid_loss"]
