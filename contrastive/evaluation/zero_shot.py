"""Zero-shot classification: class names × prompt templates against pictures."""

import pathlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from contrastive.data.cleaning import canonical_form, clip_form, lower_form
from contrastive.errors import DataError, MeasureError, UserError
from contrastive.evaluation.class_sets import read_lines, shipped_templates
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.ranking import Ranks, rank, rank_scores
from contrastive.geometry import normalize
from contrastive.mesh import Devices

EncodeText = Callable[[Sequence[str]], np.ndarray]

# Each has one {} for the class name. :func:`templates_of` knows those of published sets too.
TEMPLATES: dict[str, tuple[str, ...]] = {
    "plain": ("{}",),
    "emoji": ("{}", "{} emoji", "an emoji of {}", "a picture of {}", "a drawing of {}"),
    "photo": ("a photo of a {}.", "a picture of a {}.", "an image of a {}."),
}
# The forms that families of models put a prompt into. A tokenizer of a preset does so by itself.
FORMS: dict[str, Callable[[str], str]] = {
    "clip": clip_form,
    "siglip": canonical_form,
    "siglip2": lower_form,
}
# Prompts that are encoded together, so that not all of a large set are held.
_PROMPTS = 4096


def templates_of(name: str) -> tuple[str, ...]:
    """Prompts by the name of a set, or from a ``.txt`` file with one a line.

    Raises:
      UserError: It is neither.
      DataError: A line of the file has no ``{}``, or it has no lines.
    """
    known = TEMPLATES | shipped_templates()
    if name in known:
        return known[name]
    path = pathlib.Path(name)
    if path.suffix != ".txt" or not path.is_file():
        raise UserError(
            f"{name!r} is no set of templates: give one of {', '.join(sorted(known))}, or a .txt "
            "file with one a line."
        )
    lines = read_lines(path)
    if not lines or any("{}" not in line for line in lines):
        raise DataError(f"{path}: every line needs {{}} in the place of the class name.")
    return lines


class ClassRows:
    """Rows of classes, each computed once: sets that share names and prompts share the work.

    Args:
      encode_text: Maps strings to unit rows.
      form: What is done to every prompt before it is encoded: a key of ``FORMS``, or None.
    """

    def __init__(self, encode_text: EncodeText, form: str | None = None) -> None:
        self._encode, self._form = encode_text, FORMS[form] if form else str
        self._rows: dict[tuple[str, tuple[str, ...]], np.ndarray] = {}

    def __call__(
        self, names: Sequence[str] | Mapping[int, str], templates: Sequence[str]
    ) -> tuple[Int[np.ndarray, "classes"], Float[np.ndarray, "classes dim"]]:
        """One unit row a class: every prompt normalised, their mean, normalised again.

        Args:
          names: The name of every label id; a sequence gives the names of 0, 1, 2, …
          templates: Prompts with one ``{}`` each.

        Returns:
          The label ids in ascending order and their rows. Which order the names were given in does
          not matter: a label is found by its id.

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
        prompts = tuple(templates)
        keys = [(named[label], prompts) for label in labels]
        new = list(dict.fromkeys(name for name, _ in keys if (name, prompts) not in self._rows))
        step = max(1, _PROMPTS // len(prompts))
        for start in range(0, len(new), step):
            self._add(new[start : start + step], prompts)
        return labels, np.stack([self._rows[key] for key in keys])

    def _add(self, names: Sequence[str], templates: tuple[str, ...]) -> None:
        texts = [self._form(t.replace("{}", name)) for name in names for t in templates]
        rows = np.asarray(self._encode(texts), np.float32).reshape(len(names), len(templates), -1)
        means = np.asarray(normalize(rows.mean(axis=1)))
        self._rows.update({(name, templates): row for name, row in zip(names, means, strict=True)})


def classification_metrics(
    images: Float[np.ndarray, "images dim"],
    labels: Int[np.ndarray, "images"],
    class_labels: Int[np.ndarray, "classes"],
    classes: Float[np.ndarray, "classes dim"],
    *,
    top: tuple[int, ...] = (1, 5),
    devices: Devices | None = None,
) -> Measured:
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
      devices: The pictures are cut over them.

    Raises:
      MeasureError: No classes, no labelled pictures, or rows that are not finite.
      ValueError: A label that is not among the classes.
    """
    return summarise(labels, class_labels, lambda keep: rank(
        images[keep], classes, labels[keep], class_labels, devices=devices
    ), top=top)  # fmt: skip


def score_metrics(
    scores: Float[np.ndarray, "images classes"],
    labels: Int[np.ndarray, "images"],
    class_labels: Int[np.ndarray, "classes"],
    *,
    top: tuple[int, ...] = (1, 5),
) -> Measured:
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
) -> Measured:
    """The metrics from ``ranker(indices of the labelled pictures)``."""
    if not len(class_labels):
        raise MeasureError("there are no classes to choose from.")
    keep = np.flatnonzero(labels >= 0)
    if not len(keep):
        raise MeasureError(f"none of the {len(labels)} pictures has a label.")
    ranks, kept = ranker(keep), labels[keep]
    results = Measured()
    for k in top:
        if k <= len(class_labels):
            results.mean(f"top{k}", np.asarray(ranks.recall(k)))
            results[f"top{k}_chance"] = k / len(class_labels)
    _, index, counts = np.unique(kept, return_inverse=True, return_counts=True)
    correct = np.asarray(ranks.recall(1))
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
