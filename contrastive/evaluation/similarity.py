"""Pairs of rows against what people say of them: similarity (STS) and same-or-not (duplicates)."""

import numpy as np
from jaxtyping import Bool, Float, Shaped
from scipy.stats import rankdata

from contrastive.errors import DataError, MeasureError
from contrastive.evaluation.measured import Measured


def similarity_metrics(
    first: Float[np.ndarray, "pairs dim"],
    second: Float[np.ndarray, "others dim"],
    scores: Float[np.ndarray, "scores"],
) -> Measured:
    """Spearman's and Pearson's correlation of the pairs' cosines with people's scores.

    Args:
      first: Unit rows of one text of each pair.
      second: Those of the other.
      scores: What people say; any scale.

    Returns:
      ``spearman``, ``pearson``, ``pairs``. Where all cosines or all scores are equal there is no
      correlation: both are None and ``undefined`` says why.

    Raises:
      DataError: Fewer than two pairs, or numbers of rows that differ.
      MeasureError: Rows or scores that are not finite.
    """
    cosines = pair_cosines(first, second)
    scores = np.asarray(scores, np.float64)
    if len(scores) != len(cosines) or len(scores) < 2:
        raise DataError(
            f"{len(cosines)} pairs with {len(scores)} scores: a correlation needs as many scores "
            "as pairs, and two at least."
        )
    if not np.isfinite(scores).all():
        raise MeasureError(
            f"the score of pair {np.flatnonzero(~np.isfinite(scores))[0]} is no number."
        )
    lists = np.stack([cosines, scores])
    results = Measured({"pairs": float(len(scores))})
    results["spearman"], results["pearson"] = spearman(*lists), pearson(*lists)
    if results["spearman"] is None:
        which = "cosines" if np.ptp(cosines) <= _SAME else "scores"
        results["undefined"] = f"all {which} are equal"
    else:
        results.each = {"spearman": lists}
    return results


# Cosines of equal rows differ by so much where they are summed in another order.
_SAME = 1e-12


def pearson(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> float | None:
    """Correlation of two lists; None where one of them does not vary."""
    if min(np.ptp(x), np.ptp(y)) <= _SAME:
        return None
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearman(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> float | None:
    """Correlation of the ranks; equal values have the mean of their ranks. None as above."""
    if min(np.ptp(x), np.ptp(y)) <= _SAME:
        return None
    return pearson(rankdata(x), rankdata(y))


def pair_cosines(
    first: Float[np.ndarray, "pairs dim"], second: Float[np.ndarray, "others dim"]
) -> Float[np.ndarray, "pairs"]:
    """Float64 cosines of the pairs of unit rows; 0 where a row is zero.

    Raises:
      DataError: Numbers of rows that differ.
      MeasureError: A row is not finite.
    """
    if first.shape != second.shape:
        raise DataError(
            f"pairs need as many first rows as second ones; given are {list(first.shape)} and "
            f"{list(second.shape)}."
        )
    a, b = first.astype(np.float64), second.astype(np.float64)
    product = np.einsum("nd,nd->n", a, b)
    length = np.sqrt(np.einsum("nd,nd->n", a, a) * np.einsum("nd,nd->n", b, b))
    if not np.isfinite(length).all():
        raise MeasureError(
            f"a row of pair {np.flatnonzero(~np.isfinite(length))[0]} is not finite."
        )
    return np.divide(product, length, out=np.zeros_like(product), where=length > 0)


def pair_classification_metrics(
    first: Float[np.ndarray, "pairs dim"],
    second: Float[np.ndarray, "others dim"],
    labels: Shaped[np.ndarray, "labels"],
) -> Measured:
    """How well one threshold of the cosine tells pairs that are the same from those that are not.

    ``average_precision`` is ``Σ (R_i − R_{i−1}) P_i`` over the distinct cosines, ``roc_auc`` the
    probability that a random pair of the first kind has the larger cosine (half, if equal).
    ``accuracy`` and ``f1`` (with its ``precision`` and ``recall``) are those of the best threshold
    for each, chosen on these very pairs, and between two distinct cosines.

    Args:
      first: Unit rows of one text of each pair.
      second: Those of the other.
      labels: 1 or True where a pair is the same.

    Raises:
      DataError: The pairs are all of one kind, or a label is neither 0 nor 1.
    """
    cosines = pair_cosines(first, second)
    if len(labels) != len(cosines) or not np.isin(labels, (0, 1)).all():
        raise DataError("every pair needs a label, 1 where it is the same and 0 where it is not.")
    same = np.asarray(labels).astype(bool)
    positives = int(same.sum())
    if positives in (0, len(same)):
        kind = "the same" if positives else "not the same"
        raise DataError(
            f"all {len(same)} pairs are {kind}: telling two kinds apart needs pairs of both."
        )
    order = np.argsort(-cosines, kind="stable")
    sorted_, hits = cosines[order], np.cumsum(same[order])
    ends = np.flatnonzero(np.append(np.diff(sorted_) < -_SAME, True))  # last of its cosine
    said, right = ends + 1.0, hits[ends].astype(np.float64)
    precision, recall = right / said, right / positives
    f1 = 2 * right / (said + positives)
    accuracy = (right + (len(same) - positives) - (said - right)) / len(same)
    nothing = 1 - positives / len(same)  # a threshold above all cosines
    best, exact = int(f1.argmax()), int(accuracy.argmax())
    results = Measured(
        {
            "average_precision": float(np.sum(np.diff(recall, prepend=0.0) * precision)),
            "average_precision_chance": positives / len(same),
            "roc_auc": _auc(cosines, same),
            "f1": float(f1[best]),
            "precision": float(precision[best]),
            "recall": float(recall[best]),
            "f1_threshold": _between(sorted_, int(ends[best])),
            "accuracy": float(max(accuracy[exact], nothing)),
            "accuracy_majority": max(positives / len(same), nothing),
            "accuracy_threshold": (
                1.0 if nothing > accuracy[exact] else _between(sorted_, int(ends[exact]))
            ),
            "pairs": float(len(same)),
            "same": float(positives),
        }
    )
    return results


def _auc(scores: np.ndarray, same: Bool[np.ndarray, "pairs"]) -> float:
    """Mann and Whitney's statistic, from mean ranks."""
    positives, negatives = int(same.sum()), int((~same).sum())
    above = rankdata(scores)[same].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def _between(descending: np.ndarray, last: int) -> float:
    """The middle between a score and the next lower one."""
    following = descending[last + 1] if last + 1 < len(descending) else descending[last]
    return float((descending[last] + following) / 2)
