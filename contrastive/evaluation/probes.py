"""What labels can be read off frozen embeddings: nearest neighbours, a linear probe, few examples.

Classes are compared by label, so the two splits need not hold the same ones: an example of a class
that was never shown counts as wrong.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.optimize import minimize

from contrastive.errors import DataError
from contrastive.evaluation.bootstrap import interval
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.neighbours import Method, neighbours, recall_of
from contrastive.evaluation.placing import check_finite

PENALTIES = tuple(10.0**-i for i in range(1, 8))  # of the linear probe, the strongest first
RIDGES = tuple(10.0**i for i in range(-4, 4))  # of the least squares
VALIDATION = 0.2  # share of the training examples that chooses among them


def knn(
    train: Float[np.ndarray, "train dim"],
    train_labels: Int[np.ndarray, "train"],
    test: Float[np.ndarray, "test dim"],
    test_labels: Int[np.ndarray, "test"],
    *,
    k: int = 20,
    temperature: float = 0.07,
    search: Method = "exact",
) -> Measured:
    """Accuracy of the weighted vote of the k nearest training examples, ``exp(cosine / τ)`` each.

    Equal votes share the credit.

    Args:
      train: Unit rows, float32.
      train_labels: Their labels; those of negative labels are left out.
      test: Unit rows, float32.
      test_labels: Likewise.
      k: Neighbours; fewer where there are fewer.
      temperature: τ.
      search: How neighbours are found; of others than ``exact``, ``search_recall`` is measured.

    References:
      Wu et al., Unsupervised Feature Learning via Non-Parametric Instance Discrimination, 2018.
    """
    train, seen, test, wanted, classes = _checked(train, train_labels, test, test_labels)
    k = min(k, len(train))
    found = neighbours(test, train, k, method=search)
    votes = np.exp((found.scores - found.scores[:, :1]) / temperature).astype(np.float64)
    tally = np.zeros((len(test), len(classes)))
    np.add.at(tally, (np.arange(len(test))[:, None], seen[found.items]), votes)
    results = _accuracy(tally, wanted, len(classes))
    results["k"] = float(k)
    if search != "exact":
        results["search_recall"] = recall_of(found, test, train)
    return results


def linear_probe(
    train: Float[np.ndarray, "train dim"],
    train_labels: Int[np.ndarray, "train"],
    test: Float[np.ndarray, "test dim"],
    test_labels: Int[np.ndarray, "test"],
    *,
    penalties: Sequence[float] = PENALTIES,
    seed: int = 0,
) -> Measured:
    """Accuracy of multinomial logistic regression, by L-BFGS over all examples.

    Minimises ``mean cross-entropy + λ/2 ‖W‖²`` with a bias. λ is the one of the best accuracy on a
    fifth of the training examples, then all are fitted with it; the test set is looked at once.

    Args:
      train: Rows, float32.
      train_labels: Their labels; those of negative labels are left out.
      test: Rows, float32.
      test_labels: Likewise.
      penalties: The λ to choose from, the strongest first.
      seed: Of the split.

    Raises:
      DataError: Fewer than two classes, or nothing to train or test on.
    """
    train, seen, test, wanted, classes = _checked(train, train_labels, test, test_labels)
    if len(classes) < 2:
        raise DataError(f"all {len(train)} training examples are of one class: nothing to tell.")
    fit, held = _split(seen, seed)
    best, weights = (-1.0, penalties[0]), None
    for penalty in penalties:
        weights = _fit(train[fit], seen[fit], len(classes), penalty, weights)
        scores = _with_ones(train[held]) @ weights
        accuracy = float(np.mean(scores.argmax(axis=1) == seen[held]))
        best = max(best, (accuracy, penalty), key=lambda x: x[0])
    weights = _fit(train, seen, len(classes), best[1], None)
    results = _accuracy(_with_ones(test) @ weights, wanted, len(classes))
    results["validation_top1"], results["penalty"] = best
    return results


def few_shot(
    train: Float[np.ndarray, "train dim"],
    train_labels: Int[np.ndarray, "train"],
    test: Float[np.ndarray, "test dim"],
    test_labels: Int[np.ndarray, "test"],
    *,
    shots: int,
    draws: int = 5,
    ridges: Sequence[float] = RIDGES,
    seed: int = 0,
) -> Measured:
    """Accuracy of least squares on ``shots`` examples a class, mean over ``draws`` of them.

    Rows are centred; the targets are 1 for the class and −1 for the others; the ridge is the one
    of the best accuracy on at most 20 other training examples a class (1 where there are none).

    Returns:
      ``top1`` (mean over draws), ``top1_deviation`` (standard deviation over draws), and as for
      the other probes.

    Raises:
      DataError: A class has fewer than ``shots`` training examples.
    """
    train, seen, test, wanted, classes = _checked(train, train_labels, test, test_labels)
    counts = np.bincount(seen, minlength=len(classes))
    if counts.min() < shots:
        raise DataError(
            f"class {classes[counts.argmin()]} has {counts.min()} training examples; {shots} are "
            "needed (--shots takes other numbers)."
        )
    draw = np.random.default_rng(seed)
    correct = []
    for _ in range(draws):
        order = draw.permutation(len(train))
        place = _places_in_class(seen[order])
        shown = order[place < shots]
        held = order[(place >= shots) & (place < shots + 20)]
        solve = _least_squares(train[shown], seen[shown], len(classes))
        ridge = 1.0
        if len(held):
            found = [np.mean(solve(r)(train[held]).argmax(axis=1) == seen[held]) for r in ridges]
            ridge = ridges[int(np.argmax(found))]
        correct.append(_hits(solve(ridge)(test), wanted))
    results = _summary(np.mean(correct, axis=0), len(wanted), len(classes))
    results["top1_deviation"] = float(np.std([x.mean() for x in correct]))
    results |= {"shots": float(shots), "draws": float(draws)}
    return results


def _checked(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What has a label, and labels as numbers of classes; −1 for those never shown."""
    shown, asked = train_labels >= 0, test_labels >= 0
    train, train_labels = train[shown], train_labels[shown]
    test, test_labels = test[asked], test_labels[asked]
    if not len(train) or not len(test):
        raise DataError(
            f"{len(train)} labelled examples to train on and {len(test)} to test on: a probe needs "
            "both."
        )
    check_finite(train, test, ("training example", "test example"))
    classes, seen = np.unique(train_labels, return_inverse=True)
    place = np.clip(np.searchsorted(classes, test_labels), 0, len(classes) - 1)
    wanted = np.where(classes[place] == test_labels, place, -1)
    return train, seen, test, wanted, classes


def _split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Every class's examples in proportion; the first of each always to fit with."""
    order = np.random.default_rng(seed).permutation(len(labels))
    place = _places_in_class(labels[order])
    counts = np.bincount(labels)[labels[order]]
    held = place >= np.maximum(np.floor(counts * (1 - VALIDATION)), 1)
    if not held.any():
        raise DataError(
            "no class has two training examples: nothing is left to choose the penalty with."
        )
    return order[~held], order[held]


def _places_in_class(labels: np.ndarray) -> np.ndarray:
    """The how-manieth of its class each example is."""
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels)
    place = np.empty(len(labels), np.int64)
    place[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place


def _with_ones(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, np.ones((len(rows), 1), rows.dtype)], axis=1)


def _fit(
    rows: np.ndarray, labels: np.ndarray, classes: int, penalty: float, start: np.ndarray | None
) -> np.ndarray:
    x, y = jnp.asarray(_with_ones(rows)), jnp.asarray(labels.astype(np.int32))
    shape = x.shape[1], classes

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = jnp.asarray(flat.reshape(shape).astype(np.float32))
        loss, slope = _loss(weights, x, y, np.float32(penalty))
        return float(loss), np.asarray(slope, np.float64).reshape(-1)

    first = np.zeros(shape) if start is None else start
    options = {"maxiter": 1000, "ftol": 1e-9, "gtol": 1e-6}
    found: Any = minimize(value, first.reshape(-1), jac=True, method="L-BFGS-B", options=options)
    return found.x.reshape(shape)


@jax.jit
@jax.value_and_grad
def _loss(
    weights: Float[Array, "dim classes"],
    x: Float[Array, "n dim"],
    y: Int[Array, " n"],
    penalty: Float[Array, ""],
) -> Float[Array, ""]:
    logits = jnp.matmul(x, weights, precision=jax.lax.Precision.HIGHEST)
    own = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(logits, axis=1) - own)
    return loss + penalty / 2 * jnp.sum(weights[:-1] ** 2)  # the bias is free


def _least_squares(rows: np.ndarray, labels: np.ndarray, classes: int) -> Any:
    """From a ridge to the scores of the solution; one decomposition serves all ridges."""
    x = rows.astype(np.float64)
    mean = x.mean(axis=0)
    targets = np.where(labels[:, None] == np.arange(classes)[None, :], 1.0, -1.0)
    offset = targets.mean(axis=0)
    left, values, right = np.linalg.svd(x - mean, full_matrices=False)
    across = left.T @ (targets - offset)

    def solve(ridge: float) -> Any:
        weights = right.T @ ((values / (values**2 + ridge))[:, None] * across)
        return lambda rows: (rows.astype(np.float64) - mean) @ weights + offset

    return solve


def _hits(scores: np.ndarray, wanted: np.ndarray) -> Float[np.ndarray, "test"]:
    """Whether the best class is the right one; classes of equal scores share the credit."""
    best = scores == scores.max(axis=1, keepdims=True)
    right = best[np.arange(len(scores)), np.maximum(wanted, 0)] & (wanted >= 0)
    return right / best.sum(axis=1)


def _accuracy(scores: np.ndarray, wanted: np.ndarray, classes: int) -> Measured:
    return _summary(_hits(scores, wanted), len(wanted), classes)


def _summary(correct: np.ndarray, count: int, classes: int) -> Measured:
    results = Measured()
    results.mean("top1", correct)
    _, results["top1_low"], results["top1_high"] = interval(correct)
    results |= {"top1_chance": 1 / classes, "images": float(count), "classes": float(classes)}
    return results
