"""Zero-shot classification: class names × prompt templates against pictures."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from contrastive.evaluation.ranking import Ranks, rank, rank_scores
from contrastive.geometry import normalize

EncodeText = Callable[[Sequence[str]], np.ndarray]

# Each has one {} for the class name.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "plain": ("{}",),
    "emoji": ("{}", "{} emoji", "an emoji of {}", "a picture of {}", "a drawing of {}"),
    "photo": ("a photo of a {}.", "a picture of a {}.", "an image of a {}."),
}


def class_embeddings(
    encode_text: EncodeText,
    names: Sequence[str] | Mapping[int, str],
    templates: Sequence[str],
) -> tuple[Int[np.ndarray, "classes"], Float[np.ndarray, "classes dim"]]:
    """One unit row a class: every prompt normalised, their mean, normalised again.

    Args:
      encode_text: Maps strings to unit rows.
      names: The name of every label id; a sequence gives the names of 0, 1, 2, …
      templates: Prompts with one ``{}`` each.

    Returns:
      The label ids in ascending order and their rows. Which order the names were given in does not
      matter: a label is found by its id.

    Raises:
      ValueError: No classes, no templates, or a template without ``{}``.
    """
    named = dict(enumerate(names)) if not isinstance(names, Mapping) else names
    if not named:
        raise ValueError("zero-shot classification needs at least one class name.")
    if not templates or any("{}" not in template for template in templates):
        raise ValueError(f"templates need one {{}} each for the class name; given {templates}.")
    labels = np.array(sorted(named), np.int32)
    _warn_about_names({int(label): named[label] for label in labels})
    prompts = [template.replace("{}", named[label]) for label in labels for template in templates]
    rows = encode_text(prompts).reshape(len(labels), len(templates), -1)
    return labels, np.asarray(normalize(rows.mean(axis=1)))


def classification_metrics(
    images: Float[np.ndarray, "images dim"],
    labels: Int[np.ndarray, "images"],
    class_labels: Int[np.ndarray, "classes"],
    classes: Float[np.ndarray, "classes dim"],
    *,
    top: tuple[int, ...] = (1, 5),
) -> dict[str, float]:
    """Top-k accuracy, mean accuracy per class and what chance gives.

    Pictures with a negative label have none and are left out. Equal scores count by expectation
    (two classes with the same name share the credit). ``topk`` is left out where there are fewer
    than k classes. Classes without a picture do not enter the mean per class.

    Args:
      images: Unit rows.
      labels: Label ids; negative = unlabelled.
      class_labels: Label id of each row of ``classes``.
      classes: Unit rows.
      top: The k of top-k.

    Raises:
      ValueError: No classes, no labelled pictures, or a label that is not among the classes.
    """
    return summarise(labels, class_labels, lambda keep: rank(
        images[keep], classes, labels[keep], class_labels
    ), top=top)  # fmt: skip


def score_metrics(
    scores: Float[np.ndarray, "images classes"],
    labels: Int[np.ndarray, "images"],
    class_labels: Int[np.ndarray, "classes"],
    *,
    top: tuple[int, ...] = (1, 5),
) -> dict[str, float]:
    """:func:`classification_metrics` for a score matrix that exists."""
    return summarise(labels, class_labels, lambda keep: rank_scores(
        scores[keep], labels[keep], class_labels
    ), top=top)  # fmt: skip


def summarise(
    labels: Int[np.ndarray, "images"],
    class_labels: Int[np.ndarray, "classes"],
    ranker: Callable[[np.ndarray], Ranks],
    *,
    top: tuple[int, ...],
) -> dict[str, float]:
    """The metrics from ``ranker(indices of the labelled pictures)``."""
    if not len(class_labels):
        raise ValueError("there are no classes to choose from.")
    keep = np.flatnonzero(labels >= 0)
    if not len(keep):
        raise ValueError(f"none of the {len(labels)} pictures has a label.")
    ranks, kept = ranker(keep), labels[keep]
    results: dict[str, float] = {}
    for k in top:
        if k <= len(class_labels):
            results[f"top{k}"] = float(ranks.recall(k).mean())
            results[f"top{k}_chance"] = k / len(class_labels)
    _, index, counts = np.unique(kept, return_inverse=True, return_counts=True)
    correct = ranks.recall(1)
    results["mean_per_class"] = float((np.bincount(index, weights=correct) / counts).mean())
    results["mean_per_class_chance"] = 1 / len(class_labels)
    results["top1_majority"] = float(counts.max() / len(kept))  # always the commonest class
    results["images"] = float(len(kept))
    results["classes"] = float(len(class_labels))
    return results


def _warn_about_names(names: dict[int, str]) -> None:
    seen: dict[str, int] = {}
    twice, joined = [], []
    for label, name in names.items():
        if name in seen:
            twice.append(f"{name!r} (labels {seen[name]} and {label})")
        seen.setdefault(name, label)
        if re.search(r"[a-z][A-Z]", name) and " " not in name:
            spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
            joined.append(f"{name!r} (label {label}; {spaced!r}?)")
    complaints = []
    if twice:
        complaints.append(f"class names that occur twice cannot be told apart: {', '.join(twice)}")
    if joined:
        complaints.append(f"class names look run together: {', '.join(joined)}")
    if complaints:
        warnings.warn("; ".join(complaints) + ".", stacklevel=3)
