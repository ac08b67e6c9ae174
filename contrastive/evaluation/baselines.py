"""What a number has to beat: nearest neighbours in raw pixels. (Chance stands beside every metric;
a model with random parameters is evaluated like any other.)"""

import math

import numpy as np
from jaxtyping import Float, Int, UInt8


def raw_pixel_scores(
    pictures: UInt8[np.ndarray, "pictures ..."],
    known: UInt8[np.ndarray, "known ..."],
    known_labels: Int[np.ndarray, "known"],
    labels: Int[np.ndarray, "labels"],
    *,
    block: int = 256,
) -> Float[np.ndarray, "pictures labels"]:
    """How near the nearest training picture of each label is, as minus the squared distance.

    "Naming a picture" without learning: take the training picture with the most similar pixels
    and say its name. A label without a training picture scores −inf.

    Args:
      pictures: To be named.
      known: Training pictures of the same size.
      known_labels: What each training picture shows.
      labels: The labels to choose from, distinct.
      block: Pictures compared at a time; ``block × known`` float32 distances are held.

    Raises:
      ValueError: A label is given twice.
    """
    if len(np.unique(labels)) != len(labels):
        raise ValueError("labels are not distinct.")
    column = {int(label): i for i, label in enumerate(labels)}
    keep = np.flatnonzero([int(label) in column for label in known_labels])
    columns = np.array([column[int(known_labels[i])] for i in keep], np.int64)
    order = np.argsort(columns, kind="stable")
    columns, rows = columns[order], _flat(known[keep[order]])
    present, starts = np.unique(columns, return_index=True)
    scores = np.full((len(pictures), len(labels)), -np.inf, np.float32)
    if not len(rows):
        return scores
    squared = np.sum(rows * rows, axis=1)
    for start in range(0, len(pictures), block):
        x = _flat(pictures[start : start + block])
        distance = np.sum(x * x, axis=1)[:, None] + squared[None, :] - 2 * (x @ rows.T)
        nearest = np.minimum.reduceat(distance, starts, axis=1)
        scores[start : start + block, present] = -nearest
    return scores


def _flat(pictures: np.ndarray) -> np.ndarray:
    return pictures.reshape(len(pictures), math.prod(pictures.shape[1:])).astype(np.float32) / 255.0
