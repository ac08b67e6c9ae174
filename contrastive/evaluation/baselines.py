"""What a number has to beat: nearest neighbours in raw pixels, and words in common. (Chance stands
beside every metric; a model with random parameters is evaluated like any other.)"""

import math
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float32, Int, UInt8
from PIL import Image
from PIL.Image import Resampling
from scipy import sparse


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


class RawPixels:
    """Encodes a picture as its own pixels, stretched to ``size × size`` and of unit length: what
    probes of a model have to beat.

    Args:
      size: Edge in pixels.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def encode_image(self, images: Sequence[Image.Image]) -> Float32[np.ndarray, "images dim"]:
        """Unit rows, ``dim = 3 size²``; a black picture has a row of zeros."""
        small = [
            x.convert("RGB").resize((self.size, self.size), Resampling.BICUBIC) for x in images
        ]
        rows = _flat(np.stack([np.asarray(x) for x in small]))
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


def _flat(pictures: np.ndarray) -> np.ndarray:
    return pictures.reshape(len(pictures), math.prod(pictures.shape[1:])).astype(np.float32) / 255.0


def tf_idf_scores(
    queries: Sequence[str], texts: Sequence[str]
) -> Float[np.ndarray, "queries texts"]:
    """Cosines of TF-IDF vectors: how many words two texts have in common, rare ones above all.

    A word (letters and digits, in lower case) counts as often as it is in a text, times
    ``1 + log((1 + n) / (1 + d))``: n the number of ``texts`` and d that of those with the word.
    Words that no text has count for nothing. A query without known words has cosine 0 with all.

    References:
      Spärck Jones, A Statistical Interpretation of Term Specificity, 1972.
    """
    number: dict[str, int] = {}
    for text in texts:
        for word in _words(text):
            number.setdefault(word, len(number))
    counts = _counts(texts, number)
    weights = 1 + np.log(
        (1 + len(texts)) / (1 + np.bincount(counts.indices, minlength=len(number)))
    )
    known, asked = (
        _unit(x.multiply(weights[None]).tocsr()) for x in (counts, _counts(queries, number))
    )
    return (asked @ known.T).toarray().astype(np.float32)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _counts(texts: Sequence[str], number: dict[str, int]) -> sparse.csr_array:
    """How often each known word is in each text; each place of the matrix once."""
    found = [[number[word] for word in _words(text) if word in number] for text in texts]
    rows = np.repeat(np.arange(len(found)), [len(words) for words in found])
    columns = np.array([column for words in found for column in words], np.int64)
    shape = (len(texts), len(number))
    return sparse.coo_array((np.ones(len(rows)), (rows, columns)), shape).tocsr()


def _unit(rows: sparse.csr_array) -> sparse.csr_array:
    length = np.sqrt(rows.multiply(rows).sum(axis=1))
    return rows.multiply(
        np.divide(1, length, out=np.zeros_like(length), where=length > 0)[:, None]
    ).tocsr()
