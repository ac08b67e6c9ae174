"""How the rows of two towers lie: ranks, spectra, gaps, cosines, and whether they have collapsed.

The measures of :mod:`contrastive.geometry`, and those that are only for reports.
"""

from functools import partial

import jax
import numpy as np
from jaxtyping import Float, Int

from contrastive.evaluation.measured import Measured
from contrastive.evaluation.placing import check_finite
from contrastive.geometry import alignment, mutual_information_bound, uniformity
from contrastive.logits import LogitPartition

_alignment = jax.jit(alignment)
_uniformity = jax.jit(partial(uniformity, partition=LogitPartition()))
_information = jax.jit(partial(mutual_information_bound, partition=LogitPartition()))

BINS = 80  # of the cosines' histograms, from -1 to 1
_NEGATIVES = 100_000  # pairs that stand for all that do not belong together
_CANDIDATES = 8192  # pairs that the bound on information looks at
# Fewer rows say nothing about a collapse.
_LEAST_ROWS = 50


def geometry_metrics(
    first: Float[np.ndarray, "pairs dim"],
    second: Float[np.ndarray, "pairs dim"],
    ids: Int[np.ndarray, "pairs"],
    *,
    scale: float | None = None,
    names: tuple[str, str] = ("images", "texts"),
) -> Measured:
    """Measures of the pairs (row i of both sides) and of each side.

    ``alignment``, ``uniformity_*`` (two rows at least); ``effective_rank_*``, see
    :func:`effective_rank`; ``modality_gap``, the distance of the sides' means; ``cosine_positive``
    and ``cosine_negative``, mean cosines of pairs and of rows that are none; ``information_bound``,
    ``log N − InfoNCE`` in nats at the model's scale, under its ceiling ``information_ceiling`` =
    ``log N``, over the first pair of each content; ``collapsed``, 1 where :func:`alarm` has
    something to say.

    Args:
      first: Unit rows, float32.
      second: Unit rows, float32.
      ids: Content ids: rows of equal ones are no negatives.
      scale: ``exp(log_scale)``; None leaves the bound out.
      names: What the sides are called.

    Raises:
      MeasureError: A row is not finite.

    References:
      Wang & Isola 2020 (alignment, uniformity). Garrido et al., RankMe, 2023 (effective rank).
      Liang et al., Mind the Gap, 2022 (modality gap). van den Oord et al. 2018 (bound).
    """
    check_finite(first, second, names)
    results = Measured({"alignment": float(_alignment(first, second))})
    for name, rows in zip(names, (first, second), strict=True):
        if len(rows) > 1:
            results[f"uniformity_{name}"] = float(_uniformity(rows))
        results[f"effective_rank_{name}"] = effective_rank(spectrum(rows))
    gap = first.mean(axis=0, dtype=np.float64) - second.mean(axis=0, dtype=np.float64)
    results["modality_gap"] = float(np.linalg.norm(gap))
    positives, negatives = pair_cosines(first, second, ids)
    results["cosine_positive"] = float(positives.mean())
    if len(negatives):
        results["cosine_negative"] = float(negatives.mean())
    rows = np.sort(np.unique(ids, return_index=True)[1])[:_CANDIDATES]
    if scale is not None and len(rows) > 1:
        bound = _information(first[rows], second[rows], np.float32(scale))
        results["information_bound"] = float(bound)
        results["information_ceiling"] = float(np.log(len(rows)))
    results["collapsed"] = float(bool(alarm(results, len(first), first.shape[1], names=names)))
    return results


def spectrum(rows: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "dim"]:
    """Singular values of the matrix of rows, the largest first, in float64."""
    gram = np.zeros((rows.shape[1],) * 2)
    for start in range(0, len(rows), 8192):
        part = rows[start : start + 8192].astype(np.float64)
        gram += part.T @ part
    return np.sqrt(np.clip(np.linalg.eigvalsh(gram)[::-1], 0, None))


def effective_rank(singular: Float[np.ndarray, "dim"]) -> float:
    """``exp(−Σ p log p)`` of the singular values' shares p: how many directions are used.

    1 where all rows lie on one line, dim where all directions are used alike; 0 of zero rows.
    """
    total = singular.sum()
    if total == 0:
        return 0.0
    shares = singular / total
    shares = shares[shares > 1e-7]
    return float(np.exp(-np.sum(shares * np.log(shares))))


def pair_cosines(
    first: Float[np.ndarray, "pairs dim"],
    second: Float[np.ndarray, "pairs dim"],
    ids: Int[np.ndarray, "pairs"],
    *,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "pairs"], Float[np.ndarray, "negatives"]]:
    """Cosines of the pairs, and of random rows of both sides whose ids differ."""
    draw = np.random.default_rng(seed)
    i, j = draw.integers(len(first), size=(2, _NEGATIVES))
    differ = ids[i] != ids[j]
    i, j = i[differ], j[differ]
    negatives = [
        np.einsum("nd,nd->n", first[i[part]], second[j[part]])
        for part in (slice(start, start + 8192) for start in range(0, len(i), 8192))
    ]
    positives = np.einsum("nd,nd->n", first, second)
    return positives, np.concatenate(negatives) if negatives else positives[:0]


def histograms(
    first: Float[np.ndarray, "pairs dim"],
    second: Float[np.ndarray, "pairs dim"],
    ids: Int[np.ndarray, "pairs"],
) -> dict[str, np.ndarray]:
    """Shares of the cosines in ``BINS`` equal bins from −1 to 1, and both spectra as shares of
    their largest value: what the report draws."""
    drawn: dict[str, np.ndarray] = {}
    edges = np.linspace(-1, 1, BINS + 1)
    names = ("cosines_positive", "cosines_negative")
    for name, cosines in zip(names, pair_cosines(first, second, ids), strict=True):
        counts = np.histogram(np.clip(cosines, -1, 1), edges)[0]
        drawn[name] = counts / max(counts.sum(), 1)
    for name, rows in (("spectrum_first", first), ("spectrum_second", second)):
        values = spectrum(rows)
        drawn[name] = values / max(values[0], 1e-30)
    return drawn


def alarm(
    measured: Measured, rows: int, dim: int, *, names: tuple[str, str] = ("images", "texts")
) -> list[str]:
    """What looks collapsed, in sentences: all rows nearly the same (uniformity above −0.1), or
    spread over few of the directions there are (effective rank below a twentieth of what there
    could be). Nothing is said of fewer than 50 rows."""
    found = []
    if rows < _LEAST_ROWS:
        return found
    for name in names:
        spread, rank = measured.get(f"uniformity_{name}"), measured[f"effective_rank_{name}"]
        assert isinstance(rank, float)
        if isinstance(spread, float) and spread > -0.1:
            found.append(f"all {name} have nearly the same embedding (uniformity {spread:.3f})")
        elif rank < 0.05 * min(rows, dim):
            found.append(f"{name} use {rank:.1f} of {dim} dimensions (effective rank)")
    return found
