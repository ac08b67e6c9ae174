"""Measurements by name, on data of one's own or of others: what ``contrastive evaluate`` runs.

A task takes a model (``encode_image``, ``encode_text``) and gives ``{"TASK/METRIC": value}``.
"""

import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from contrastive.data.config import DataConfig
from contrastive.data.sources import open_source
from contrastive.errors import ConfigError, DataError, NoSuchSplit, UserError
from contrastive.evaluation import probes, retrieval, shape, zero_shot
from contrastive.evaluation.baselines import RawPixels
from contrastive.evaluation.bitext import bitext_metrics
from contrastive.evaluation.class_sets import ClassSet, class_set
from contrastive.evaluation.information_retrieval import information_retrieval_metrics
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.neighbours import Method
from contrastive.evaluation.pictures import EncodedPictures, encode_source
from contrastive.evaluation.relevance import Relevance
from contrastive.evaluation.similarity import pair_classification_metrics, similarity_metrics
from contrastive.evaluation.suite import UNTRAINED_SEED, compared, digest
from contrastive.evaluation.text_files import read_judged, read_pairs
from contrastive.mesh import Devices
from contrastive.towers import Role

_log = logging.getLogger(__name__)
# What names of files end in; a dot may also be part of a name (STS.input.MSRpar.txt).
_ENDING = re.compile(
    r"(?<=.)(\.(jsonl?|[tc]sv|txt|parquet|arrow|tar|tfrecord|array_?record|gz))+$", re.IGNORECASE
)
PIXELS = 32  # edge of the pictures whose pixels probes are compared with


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """What is measured on. Each task reads what it needs; what it has no use for is an error."""

    data: str  # a source of pictures (see DataConfig.source), or a folder or file of texts
    name: str | None = None  # how results call the set; None = the name of the data
    split: str | None = None  # None = test, else validation
    classes: str | None = None  # a set of class names or a file; probes: None = the captions
    templates: str | None = None  # a set of prompts or a file; None = those of the classes
    form: str | None = None  # what prompts become: clip, siglip, siglip2
    query_prompt: str = ""  # before every query (or first text of a pair)
    passage_prompt: str = ""  # before every passage (or second text of a pair)
    without_self: bool = False  # an item of the query's own name is left out of its ranking
    most: int | None = None  # pictures at most, evenly spaced
    shots: tuple[int, ...] = (1, 5, 10)  # examples a class
    search: Method = "exact"  # how knn finds neighbours
    baselines: bool = False  # also an untrained twin, and of probes raw pixels

    @property
    def title(self) -> str:
        """How results call the set."""
        if self.name:
            return self.name
        path = pathlib.PurePath(os.path.abspath(self.data.removeprefix("tfds:")))
        stem = _ENDING.sub("", path.name)
        found = path.parent.name if stem in ("pairs", "train", "test", "validation") else stem
        return found or "data"

    def __post_init__(self) -> None:
        if "/" in (self.name or ""):
            raise ConfigError(
                f"--name = {self.name!r}: the name of a set holds no slash, which parts sets from "
                "tasks in evaluation.json."
            )


Task = Callable[["Run"], Measured]


@dataclasses.dataclass(frozen=True)
class Run:
    """A model and what it is measured on; pictures and rows of classes are shared by its tasks."""

    model: Any
    options: TaskOptions
    devices: Devices | None = None
    known: dict[str, Any] = dataclasses.field(default_factory=dict)

    def pictures(self, split: str | None) -> tuple[str, EncodedPictures]:
        """The encoded pictures of a split (None: the held-out one) and its name."""
        wanted = (split,) if split else ("test", "validation", "val")
        last: NoSuchSplit | None = None
        for name in wanted:
            if (key := f"pictures/{name}") in self.known:
                return name, self.known[key]
            try:
                source = open_source(DataConfig(source=self.options.data), name)
            except NoSuchSplit as error:
                if split:
                    raise
                last = error
                continue
            found = encode_source(self.model, source, most=self.options.most)
            self.known[key] = found
            if last is not None:
                _log.warning(
                    "%s has no split 'test': measured are the %d pictures of %r.",
                    self.options.data, len(found.rows), name,
                )  # fmt: skip
            return name, found
        raise NoSuchSplit(
            f"{self.options.data} has no split to measure on, neither {' nor '.join(wanted)}; "
            f"--split takes another. ({last})"
        ) from last

    def texts(self, texts: Sequence[str], prompt: str = "", *, role: Role = "query") -> np.ndarray:
        """Rows of texts, each encoded once; those that are searched in are passages."""
        different = list(dict.fromkeys(texts))
        place = {text: i for i, text in enumerate(different)}
        rows = self.model.encode_text([prompt + text for text in different], role=role)
        return rows[[place[text] for text in texts]]


def run_tasks(
    model: Any, names: Sequence[str], options: TaskOptions, *, devices: Devices | None = None
) -> Measured:
    """``{"SET/TASK/METRIC": value}`` of some tasks on one set.

    Args:
      model: Encodes pictures and texts.
      names: Keys of ``TASKS``.
      options: The data, and how it is used.
      devices: The ranking is cut over them.

    Raises:
      UserError: A task that does not exist; options that none of the tasks reads; data that is
        missing or damaged.
    """
    check_tasks(names, options)
    run, results = Run(model, options, devices), Measured()
    beside = _baselines(run, names) if options.baselines else {}
    for name in names:
        prefix = f"{options.title}/{name}" if name != "retrieval" else ""
        results.add(TASKS[name](run), prefix)
        for baseline, other in beside.items() if "baselines" in READS[name] else ():
            if baseline != "raw_pixels" or name in PROBES:
                results.add(compared(TASKS[name](other), baseline), prefix)
    return results


def _baselines(run: Run, names: Sequence[str]) -> dict[str, Run]:
    """The same on models that have learned nothing; each encodes the data once."""
    found = {"random_init": run.model.untrained(UNTRAINED_SEED)}
    if PROBES & set(names):
        found["raw_pixels"] = RawPixels(min(run.model.recipe.data.image_size, PIXELS))
    return {name: Run(model, run.options, run.devices) for name, model in found.items()}


def check_tasks(names: Sequence[str], options: TaskOptions) -> None:
    """Raises :class:`UserError` for a task that does not exist, and :class:`ConfigError` for an
    option that none of the tasks reads."""
    for name in names:
        if name not in TASKS:
            raise UserError(f"{name!r} is no task: choose from {', '.join(TASKS)}.")
    for field in dataclasses.fields(options):
        given = getattr(options, field.name)
        if field.name in ("data", "name") or given == field.default:
            continue
        if not any(field.name in READS[name] for name in names):
            option = field.name.replace("_", "-")
            raise ConfigError(f"--{option} has no effect on the task {', '.join(names)}.")


def _retrieval(run: Run) -> Measured:
    title = run.options.title
    split, found = run.pictures(run.options.split)
    if not any(found.captions):
        raise DataError(f"{run.options.data} has no captions to find pictures by.")
    kept = {
        (int(identity), text): i
        for i, (identity, text) in reversed(
            list(enumerate(zip(found.ids, found.captions, strict=True)))
        )
    }
    places = np.array(sorted(i for (_, text), i in kept.items() if text))
    texts = run.texts([found.captions[int(i)] for i in places])
    text_ids = found.ids[places]
    named, first = np.unique(found.pictures[places], return_index=True)
    images, ids = found.rows[named], text_ids[first]
    results = Measured()
    for task, queries, items, own, other in (
        ("image_to_text", images, texts, ids, text_ids),
        ("text_to_image", texts, images, text_ids, ids),
    ):
        measured = retrieval.retrieval_metrics(queries, items, own, other, devices=run.devices)
        results.add(measured, f"{title}/{task}")
    results[f"{title}/split"] = split
    results[f"{title}/content"] = found.content
    return results


def _geometry(run: Run) -> Measured:
    split, found = run.pictures(run.options.split)
    said = np.flatnonzero([bool(text) for text in found.captions])
    if not len(said):
        raise DataError(f"{run.options.data} has no captions: there are no pairs to measure.")
    texts = run.texts([found.captions[int(i)] for i in said])
    images, ids = found.rows[found.pictures[said]], found.ids[said]
    scale = getattr(run.model, "scale", None)
    results = shape.geometry_metrics(images, texts, ids, scale=scale)
    results.drawn |= shape.histograms(images, texts, ids)
    return _about(results, split, found)


def _zero_shot(run: Run) -> Measured:
    options = run.options
    if options.classes is None:
        raise UserError("the task zero_shot needs --classes: a set of class names, or a file.")
    classes = class_set(options.classes)
    split, found = run.pictures(options.split)
    templates = zero_shot.templates_of(options.templates or classes.templates)
    rows = zero_shot.ClassRows(run.model.encode_text, options.form)
    labels, weights = rows(classes.named, templates)
    results = zero_shot.classification_metrics(
        found.rows, _labels(found, classes), labels, weights, devices=run.devices
    )
    results |= {
        "templates": float(len(templates)),
        "texts": float(len(templates) * len(labels)),
        "template_set": options.templates or classes.templates,
        "class_set": classes.name,
    }
    return _about(results, split, found)


def _labels(found: EncodedPictures, classes: ClassSet) -> np.ndarray:
    """The label of each picture, by its first caption."""
    return classes.labels_of(_first_captions(found))


def _about(results: Measured, split: str, found: EncodedPictures) -> Measured:
    results["split"] = split
    results["content"] = found.content
    if found.skipped:
        results["skipped"] = float(found.skipped)
    return results


def _probe(run: Run, probe: Callable[..., Measured]) -> Measured:
    if run.options.split == "train":
        raise UserError("a probe learns from the split 'train': --split has to name another.")
    _, train = run.pictures("train")
    split, test = run.pictures(run.options.split)
    if run.options.classes is None:
        names = sorted({text for text in train.captions if text})
        if len(names) > len(train.captions) / 2 and len(names) > 1:
            raise UserError(
                f"{run.options.data} has {len(names)} different captions for "
                f"{len(train.captions)} pictures: they are no names of classes. Name the classes "
                "with --classes, or take data whose captions are classes."
            )
        known = {name: i for i, name in enumerate(names)}
        labels = [
            np.array([_class_of(known, text, i) for i, text in enumerate(_first_captions(x))])
            for x in (train, test)
        ]
    else:
        classes = class_set(run.options.classes)
        labels = [_labels(x, classes) for x in (train, test)]
    results = probe(train.rows, labels[0], test.rows, labels[1])
    results["train_images"] = float(np.sum(labels[0] >= 0))
    return _about(results, split, test)


def _first_captions(found: EncodedPictures) -> list[str]:
    first = np.unique(found.pictures, return_index=True)[1]
    return [found.captions[int(i)] for i in first]


def _class_of(known: dict[str, int], text: str, place: int) -> int:
    """A class that training has not shown gets a label of its own."""
    return -1 if not text else known.get(text, len(known) + place)


def _few_shot(run: Run) -> Measured:
    results = Measured()
    for shots in run.options.shots:
        found = _probe(run, lambda *rows, shots=shots: probes.few_shot(*rows, shots=shots))
        results |= {f"{name}@{shots}": value for name, value in found.items()}
        results.each |= {f"{name}@{shots}": values for name, values in found.each.items()}
    about = "split", "content", "skipped"
    for name in about:
        values = [results.pop(f"{name}@{shots}", None) for shots in run.options.shots]
        if values[0] is not None:
            results[name] = values[0]
    return results


def _information_retrieval(run: Run) -> Measured:
    options = run.options
    data = read_judged(pathlib.Path(options.data), options.split)
    queries, items = list(data.queries), list(data.corpus)
    judged: dict[Any, Any] = dict(data.judgements)
    relevance = Relevance.from_judgements(judged, queries, items)
    excluded = None
    if options.without_self:
        place = {name: i for i, name in enumerate(items)}
        rows = [i for i, name in enumerate(queries) if name in place]
        if not rows:
            raise DataError(
                f"--without-self has no effect: no query of {options.data} has the name of a "
                "passage."
            )
        own = np.array([place[queries[i]] for i in rows], np.int64)
        excluded = Relevance.from_pairs(np.array(rows, np.int64), own, queries=len(queries))
        right = set(zip(excluded.rows.tolist(), excluded.items.tolist(), strict=True))
        pairs = zip(relevance.rows.tolist(), relevance.items.tolist(), strict=True)
        relevance = relevance.kept(np.array([pair not in right for pair in pairs], bool))
    rows = run.texts(list(data.queries.values()), options.query_prompt)
    corpus = run.texts(list(data.corpus.values()), options.passage_prompt, role="passage")
    results = information_retrieval_metrics(
        rows, corpus, relevance, excluded=excluded, devices=run.devices
    )
    judgements = [f"{q} {i} {gain}" for q, own in judged.items() for i, gain in own.items()]
    texts = [*data.queries.values(), *data.corpus.values()]
    results["content"] = digest([*queries, *items, *texts, *judgements])
    return results


def _pairs_of(run: Run, what: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    options = run.options
    data = read_pairs(pathlib.Path(options.data), what)
    first = run.texts(data.first, options.query_prompt)
    second = run.texts(data.second, options.passage_prompt)
    return first, second, np.array(data.scores), digest([*data.first, *data.second])


def _similarity(run: Run) -> Measured:
    first, second, scores, content = _pairs_of(run, "score")
    results = similarity_metrics(first, second, scores)
    results["content"] = content
    return results


def _pair_classification(run: Run) -> Measured:
    first, second, labels, content = _pairs_of(run, "label")
    results = pair_classification_metrics(first, second, labels)
    results["content"] = content
    return results


def _bitext(run: Run) -> Measured:
    first, second, _, content = _pairs_of(run, None)
    results = bitext_metrics(first, second)
    results["content"] = content
    return results


TASKS: dict[str, Task] = {
    "retrieval": _retrieval,
    "zero_shot": _zero_shot,
    "knn": lambda run: _probe(run, partial(probes.knn, search=run.options.search)),
    "linear_probe": lambda run: _probe(run, probes.linear_probe),
    "few_shot": _few_shot,
    "geometry": _geometry,
    "information_retrieval": _information_retrieval,
    "similarity": _similarity,
    "pair_classification": _pair_classification,
    "bitext": _bitext,
}
PROBES = {"knn", "linear_probe", "few_shot"}
_PICTURES, _PROMPTS = {"split", "most"}, {"query_prompt", "passage_prompt"}
# The options that each task reads, beside data and name.
READS: dict[str, set[str]] = {
    "retrieval": _PICTURES,
    "zero_shot": _PICTURES | {"classes", "templates", "form"},
    "knn": _PICTURES | {"classes", "search", "baselines"},
    "linear_probe": _PICTURES | {"classes", "baselines"},
    "few_shot": _PICTURES | {"classes", "shots", "baselines"},
    "geometry": _PICTURES,
    "information_retrieval": _PROMPTS | {"split", "without_self", "baselines"},
    "similarity": _PROMPTS | {"baselines"},
    "pair_classification": _PROMPTS,
    "bitext": _PROMPTS,
}
