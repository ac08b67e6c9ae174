"""All measurements of a model, each beside chance and what no learning would give."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from contrastive.data.config import DataConfig
from contrastive.errors import ConfigError
from contrastive.evaluation import other_pairs, retrieval, shape, zero_shot
from contrastive.evaluation.baselines import raw_pixel_scores
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.ranking import rank_scores
from contrastive.evaluation.sets import EvaluationSet, KnownPictures, known_emoji, load_sets
from contrastive.mesh import Devices

__all__ = ["EvaluationConfig", "evaluate", "evaluate_set"]

# Seed of the untrained twin; any will do, it stands for having learned nothing.
UNTRAINED_SEED = 1
# What the baselines are compared in.
_COMPARED = (
    "recall@",
    "median_rank",
    "mean_rank",
    "top",
    "mean_per_class",
    "r_precision",
    "alignment",
    "uniformity",
    "accuracy",
    "mrr",
    "ndcg",
    "spearman",
    "pearson",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When and on how much a model is evaluated."""

    every: int = 250  # steps between quick evaluations; 0 = only at the end
    quick_pictures: int = 500  # pictures a set in a quick evaluation
    pictures: int = 20_000  # pictures a set at the end; of larger sets, evenly spaced ones
    templates: Literal["plain", "emoji", "photo"] = "plain"  # prompts around class names
    baselines: bool = (
        True  # also evaluate raw pixels (of texts: common words) and an untrained model at the end
    )
    block_rows: int = 1024  # queries whose scores are held at a time
    block_cols: int = 8192  # items whose scores are held at a time

    def __post_init__(self) -> None:
        least = {"every": 0, "quick_pictures": 1, "pictures": 1, "block_rows": 1, "block_cols": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ConfigError(
                    f"config.eval.{name} = {getattr(self, name)} has to be at least {smallest}."
                )


@runtime_checkable
class Encoder(Protocol):
    """What is evaluated: pictures and texts to unit rows."""

    def encode_image(self, images: Any) -> np.ndarray: ...

    def encode_text(self, texts: Any, *, role: Any = "query") -> np.ndarray: ...

    def untrained(self, seed: int) -> Any: ...


@runtime_checkable
class EvaluationSettings(Protocol):
    """What an evaluation needs to know of a recipe."""

    @property
    def data(self) -> DataConfig: ...

    @property
    def eval(self) -> EvaluationConfig: ...


def evaluate(
    model: Encoder,
    recipe: EvaluationSettings,
    *,
    quick: bool = False,
    devices: Devices | None = None,
) -> Measured:
    """Retrieval both ways, zero-shot classification and geometry on every set.

    Args:
      model: Encodes pictures and texts.
      recipe: The run's data and evaluation settings.
      quick: Fewer pictures, no baselines but chance, numbers only: for use during training.
      devices: The ranking is cut over them; those of several processes, where all of them evaluate.

    Returns:
      ``{"SET/TASK/METRIC": value}``; a metric's chance level is beside it as ``METRIC_chance``, the
      baselines as ``METRIC_raw_pixels`` (of texts ``METRIC_tf_idf``) and ``METRIC_random_init``.
      Sizes are recorded as ``queries``, ``gallery``, ``images``, ``classes``, ``templates``, and
      (not when quick) the split, a digest of the set and the name of the template set as strings.
      Empty if there is nothing to evaluate on.
    """
    config = recipe.eval
    most = config.quick_pictures if quick else config.pictures
    if recipe.data.pairs != "captions":
        return _evaluate_others(model, recipe, most, quick, devices)
    sets = load_sets(recipe.data, most=most)
    results = Measured()
    encode_text = _Texts(model)
    classes = zero_shot.ClassRows(encode_text)
    for one in sets:
        found = evaluate_set(model, encode_text, classes, one, config, devices, drawn=not quick)
        results.add(found, one.name)
    if quick:
        return results
    for one in sets:
        results[f"{one.name}/split"] = one.name
        results[f"{one.name}/content"] = digest([*one.keys, *one.texts])
        if one.classes is not None:
            results[f"{one.name}/zero_shot/template_set"] = config.templates
    if config.baselines:
        results |= _untrained(model, sets, config, devices)
        if recipe.data.source == "emoji":
            results |= _raw_pixels(sets, known_emoji(recipe.data))
    return Measured(dict(sorted(results.items())), results.each, results.drawn)


def digest(names: Sequence[str]) -> str:
    """Equal sets have equal digests, so that results on them can be compared query by query."""
    content = hashlib.blake2b(digest_size=8)
    for name in names:
        content.update(name.encode("utf-8", "surrogatepass") + b"\0")
    return content.hexdigest()


def _evaluate_others(
    model: Encoder,
    recipe: EvaluationSettings,
    most: int,
    quick: bool,
    devices: Devices | None,
) -> Measured:
    """Pairs of texts, or of views."""
    blocks = {"block_rows": recipe.eval.block_rows, "block_cols": recipe.eval.block_cols}
    compare = partial(retrieval.retrieval_metrics, **blocks, devices=devices)
    sets, results = other_pairs.load_pairs(recipe.data, most=most), Measured()
    for one in sets:
        results.add(one.measure(model, compare), one.name)
    if quick:
        return results
    for one in sets:
        results[f"{one.name}/split"] = one.name
        results[f"{one.name}/content"] = digest(one.contents())
    if recipe.eval.baselines:
        twin = model.untrained(UNTRAINED_SEED)
        unlearned = "tf_idf" if recipe.data.pairs == "texts" else "raw_pixels"
        for one in sets:
            results.add(compared(one.measure(twin, compare), "random_init"), one.name)
            results.add(compared(one.baseline(), unlearned), one.name)
    return Measured(dict(sorted(results.items())), results.each, results.drawn)


def evaluate_set(
    model: Encoder,
    encode_text: zero_shot.EncodeText,
    classes: zero_shot.ClassRows,
    one: EvaluationSet,
    config: EvaluationConfig,
    devices: Devices | None = None,
    *,
    drawn: bool = False,
) -> Measured:
    """``{"TASK/METRIC": value}`` of one set."""
    images = model.encode_image(one.images)
    texts = encode_text(one.texts)
    named = np.isin(one.text_ids, one.ids)
    blocks = {"block_rows": config.block_rows, "block_cols": config.block_cols}
    compare = partial(retrieval.retrieval_metrics, **blocks, devices=devices)
    results = Measured()
    results.add(compare(images, texts, one.ids, one.text_ids), "image_to_text")
    found = compare(texts[named], images, one.text_ids[named], one.ids)
    results.add(found, "text_to_image")
    if one.classes is not None and one.labels is not None:
        templates = zero_shot.TEMPLATES[config.templates]
        labels, rows = classes(one.classes, templates)
        found = zero_shot.classification_metrics(images, one.labels, labels, rows, devices=devices)
        found |= {"templates": float(len(templates)), "texts": float(len(templates) * len(labels))}
        results.add(found, "zero_shot")
    own = texts[_first_of(one.text_ids, one.ids)]
    found = shape.geometry_metrics(images, own, one.ids, scale=getattr(model, "scale", None))
    if drawn:
        found.drawn |= shape.histograms(images, own, one.ids)
    return results.add(found, "geometry")


def _first_of(ids: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The first place of each of the wanted ids."""
    known, first = np.unique(ids, return_index=True)
    return first[np.searchsorted(known, wanted)]


def _untrained(
    model: Encoder,
    sets: Sequence[EvaluationSet],
    config: EvaluationConfig,
    devices: Devices | None,
) -> dict[str, Any]:
    """The same architecture with the parameters that training starts from."""
    twin = model.untrained(UNTRAINED_SEED)
    encode_text = _Texts(twin)
    classes = zero_shot.ClassRows(encode_text)
    results: dict[str, Any] = {}
    for one in sets:
        found = evaluate_set(twin, encode_text, classes, one, config, devices)
        results |= _prefixed(one.name, compared(found, "random_init"))
    return results


def _raw_pixels(sets: Sequence[EvaluationSet], known: KnownPictures) -> dict[str, Any]:
    """The name, or the class, of the training drawing with the nearest pixels.

    A concept without a training drawing cannot be named that way: it is never found, and a set of
    such concepts is only classified. The set of training drawings is left out.
    """
    results: dict[str, Any] = {}
    for one in sets:
        if one.name == "train":
            continue
        if np.isin(one.ids, known.ids).any():
            scores = raw_pixel_scores(one.images, known.images, known.ids, one.text_ids)
            named = np.isin(one.text_ids, one.ids)
            ways = {
                "image_to_text": (scores, one.ids, one.text_ids),
                "text_to_image": (scores.T[named], one.text_ids[named], one.ids),
            }
            for task, (matrix, query_ids, gallery_ids) in ways.items():
                ranks = rank_scores(matrix, query_ids, gallery_ids)
                found = retrieval.summarise(ranks, query_ids, gallery_ids)
                results |= _prefixed(f"{one.name}/{task}", compared(found, "raw_pixels"))
        if one.classes is not None and one.labels is not None:
            labels = np.array(sorted(one.classes), np.int32)
            scores = raw_pixel_scores(one.images, known.images, known.labels, labels)
            found = zero_shot.score_metrics(scores, one.labels, labels)
            results |= _prefixed(f"{one.name}/zero_shot", compared(found, "raw_pixels"))
    return results


def _prefixed(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


def compared(values: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """The metrics that baselines are compared in, as ``METRIC_BASELINE``."""
    kept = {}
    for path, value in values.items():
        metric = path.rpartition("/")[2]
        if metric.startswith(_COMPARED) and not metric.endswith(("_chance", "_majority")):
            kept[f"{path}_{baseline}"] = value
    return kept


class _Texts:
    """Encodes every text once, though sets share most of theirs."""

    def __init__(self, model: Encoder) -> None:
        self._model = model
        self._rows: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        new = list(dict.fromkeys(text for text in texts if text not in self._rows))
        if new:
            self._rows.update(zip(new, self._model.encode_text(new), strict=True))
        return np.stack([self._rows[text] for text in texts])
