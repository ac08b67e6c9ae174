"""The sets that a model is evaluated on, made from the data that it was trained on."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Int32, UInt8

from contrastive.data import emoji
from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.examples import read_evaluation_pairs, read_pictures
from contrastive.data.records import Record, SampleError, Source, Subset, check_words
from contrastive.data.sources import open_source
from contrastive.errors import DataError, NoSuchSplit
from contrastive.evaluation.emoji_classes import SUBGROUP_NAMES

# Splits that are evaluated beside the training data, as far as a source has them.
HELD_OUT_SPLITS = ("validation", "test")
_LOOKED_AT = 16  # samples of a held-out split, before training: half have to be usable


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Pictures, the texts they are told apart by, and classes.

    A picture and a text belong together where their ids are equal. Texts may belong to no picture
    (names to be confused with) and pictures may share a text.
    """

    name: str
    images: UInt8[np.ndarray, "images ..."]
    keys: Sequence[str]  # names each picture in messages and on pages
    ids: Int32[np.ndarray, " images"]
    texts: Sequence[str]
    text_ids: Int32[np.ndarray, " texts"]
    labels: Int32[np.ndarray, " images"] | None = None  # class of each picture; -1 = none
    classes: Mapping[int, str] | None = None  # name of each label
    keywords: Sequence[Sequence[str]] = ()  # other words for each picture, if there are any
    encoded: Sequence[bytes] = ()  # the pictures' files, where they were asked for

    def limited(self, most: int) -> "EvaluationSet":
        """At most so many pictures, evenly spaced; all texts and classes."""
        chosen = evenly(len(self.images), most)
        return dataclasses.replace(
            self,
            images=self.images[chosen],
            keys=[self.keys[i] for i in chosen],
            ids=self.ids[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            keywords=[self.keywords[i] for i in chosen] if self.keywords else (),
            encoded=[self.encoded[i] for i in chosen] if self.encoded else (),
        )


@dataclasses.dataclass(frozen=True)
class KnownPictures:
    """Pictures that the model was trained on, for the raw-pixel baseline."""

    images: UInt8[np.ndarray, "images ..."]
    ids: Int32[np.ndarray, " images"]
    labels: Int32[np.ndarray, " images"]


@contextlib.contextmanager
def of_split(name: str, data: DataConfig) -> Iterator[None]:
    """What is wrong with the samples of a split says of which."""
    try:
        yield
    except DataError as error:
        raise DataError(f"the split {name!r} of {data.source}: {error}") from error


def evenly(count: int, most: int) -> np.ndarray:
    """At most ``most`` of the indices below ``count``, evenly spaced, the same every time."""
    if count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


def load_sets(
    data: DataConfig, *, most: int, only: Iterable[str] | None = None, encoded: bool = False
) -> list[EvaluationSet]:
    """The evaluation sets of a data source.

    For the emoji: ``unseen_artist``, ``unseen_concepts``, ``unseen_both``, those of OpenMoji where
    it is installed, and ``train``, the training concepts as one training artist drew them (how well
    the training data is fitted). For your own data: the splits ``validation`` and ``test``, as
    far as there are such, and ``train``.

    Args:
      data: The data settings of the run.
      most: Pictures a set; of larger ones, evenly spaced pictures are taken.
      only: Names of the sets to load; None: all.
      encoded: Also keep the pictures' files, to be shown at their own size.
    """
    if data.source == "synthetic":
        return []  # random pairs teach nothing about others
    build = _emoji_sets if data.source == "emoji" else _sets_of_splits
    sets = list(build(data, most, only))
    return sets if encoded else [dataclasses.replace(one, encoded=()) for one in sets]


def _wanted(name: str, only: Iterable[str] | None) -> bool:
    return only is None or name in only


def _emoji_sets(data: DataConfig, most: int, only: Iterable[str] | None) -> Iterable[EvaluationSet]:
    concepts = emoji.load_concepts()
    labels, classes = emoji_classes()
    for name in emoji_splits(data):
        if not _wanted(name, only):
            continue
        source = open_source(data, name)
        if name == "train":  # one drawing a concept, by the first artist
            by_first = f"{emoji.TRAIN_STYLES[0]}/"
            rows = [i for i in range(len(source)) if source[i]["key"].startswith(by_first)]
            source = Subset(source, rows)
        pairs = read_evaluation_pairs(_part(source, evenly(len(source), most)), data)
        # Unseen concepts are told apart from each other, everything else from all names.
        shown = [c for c in concepts if _may_be_named(c, name)]
        yield EvaluationSet(
            name=name,
            images=pairs.images,
            keys=[record["key"] for record in pairs.records],
            ids=pairs.ids,
            texts=[c.name for c in shown],
            text_ids=np.array([c.index for c in shown], np.int32),
            labels=labels[pairs.ids],
            classes=classes,
            keywords=[tuple(record["keywords"]) for record in pairs.records],
            encoded=[record["image"] for record in pairs.records],
        )


def emoji_splits(data: DataConfig) -> list[str]:
    """The splits of the emoji that a run is evaluated on. A run that sets validation concepts aside
    is for choosing settings: it does not see the test sets."""
    from contrastive.data.emoji.builder import OPENMOJI_SPLITS, SPLITS
    from contrastive.data.emoji.pictures import openmoji_version

    if data.emoji.validation:
        return [emoji.VALIDATION_SPLIT, "train"]
    tests = [name for name in SPLITS if name != "train"]
    others = [
        name
        for name in (OPENMOJI_SPLITS if openmoji_version() else ())
        if not (data.emoji.openmoji and name == emoji.OPENMOJI_SPLIT)
    ]
    return [*tests, *others, "train"]


def _may_be_named(concept: emoji.Concept, split: str) -> bool:
    from contrastive.data.emoji.builder import OPENMOJI_SPLITS, SPLITS

    if split == emoji.VALIDATION_SPLIT:
        return concept.validation
    return concept.held_out or not (SPLITS | OPENMOJI_SPLITS)[split][1]


def emoji_classes() -> tuple[Int32[np.ndarray, " concepts"], dict[int, str]]:
    """The subgroup of every concept as a label, and the labels' names in plain words."""
    concepts = emoji.load_concepts()
    subgroups = sorted({c.subgroup for c in concepts})
    label = {subgroup: i for i, subgroup in enumerate(subgroups)}
    names = {i: SUBGROUP_NAMES[subgroup] for subgroup, i in label.items()}
    return np.array([label[c.subgroup] for c in concepts], np.int32), names


def known_emoji(data: DataConfig) -> KnownPictures:
    """All training drawings, with concept and class."""
    pairs = read_evaluation_pairs(open_source(data, "train"), data)
    labels, _ = emoji_classes()
    return KnownPictures(pairs.images, pairs.ids, labels[pairs.ids])


def _sets_of_splits(
    data: DataConfig, most: int, only: Iterable[str] | None
) -> Iterable[EvaluationSet]:
    wanted = [name for name in (*HELD_OUT_SPLITS, "train") if _wanted(name, only)]
    for name, source in open_splits(data, wanted):
        with of_split(name, data):
            pairs = read_evaluation_pairs(_part(source, evenly(len(source), most)), data)
        yield _unique(name, pairs.images, pairs.records, pairs.ids)


def check_held_out(data: DataConfig) -> None:
    """Looks at a few samples of each held-out split of your own data, so that a run does not learn
    at its end that it cannot be evaluated.

    Raises:
      DataError: A split cannot be opened, or most of the samples looked at cannot be used.
    """
    if data.source in ("emoji", "synthetic"):
        return
    for name, source in open_splits(data, HELD_OUT_SPLITS):
        with of_split(name, data):
            _check_some(source, data)


def open_splits(data: DataConfig, names: Iterable[str]) -> Iterator[tuple[str, Source]]:
    """Those of the splits that a source has; ``train`` has to be there."""
    for name in names:
        try:
            source = open_source(data, name)
        except NoSuchSplit:
            if name == "train":
                raise
            continue
        yield name, source


def _check_some(source: Source, data: DataConfig) -> None:
    rows, wrong = evenly(len(source), _LOOKED_AT), []
    for i in rows.tolist():
        try:
            record = source[i]
            check_words(record, data.pairs)
            read_pictures(record, data)
        except SampleError as error:
            wrong.append(str(error))
    if len(wrong) > max(data.max_bad_share, 0.5) * len(rows):
        raise DataError(
            f"{len(wrong)} of {len(rows)} samples looked at cannot be used, so a run could not be "
            f"evaluated on it; the first because: {wrong[0]}"
        )


def _part(source: Source, rows: Sequence[int] | np.ndarray) -> Source:
    if len(rows) == len(source):
        return source
    return Subset(source, [int(i) for i in rows])


def _unique(
    name: str, images: np.ndarray, records: Sequence[Record], ids: np.ndarray
) -> EvaluationSet:
    """Rows that repeat a picture (several captions) or a caption (several pictures) count once."""
    pictures: dict[tuple[int, bytes], int] = {}
    for row, (identity, image) in enumerate(zip(ids, images, strict=True)):
        pictures.setdefault((int(identity), image.tobytes()), row)
    first = np.array(list(pictures.values()))
    texts: dict[tuple[int, str], str] = {}
    for record, identity in zip(records, ids, strict=True):
        caption = record["caption"].strip()
        texts.setdefault((int(identity), canonical(caption)), caption)
    return EvaluationSet(
        name=name,
        images=images[first],
        keys=[records[i]["key"] for i in first],
        ids=ids[first],
        texts=list(texts.values()),
        text_ids=np.array([identity for identity, _ in texts], np.int32),
        keywords=[tuple(records[i]["keywords"]) for i in first],
        encoded=[records[i]["image"] for i in first],
    )
