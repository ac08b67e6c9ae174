"""WordNet's relations as labelled pairs and triplets of texts; ``experiments.data.wordnet`` writes
them.

The first text of a pair is a word of one sense with its definition, the second a word alone:

* ``similar``: another word of the sense, a word of what it is a kind of, or of the adjective that
  it is near to;
* ``opposite``: the antonym of the word, or of the adjective that its sense is near to;
* ``unrelated``: the second text of another pair of that part of speech.

All three come equally often in each part of speech, and unrelated pairs have the texts of the
others, so that no text alone tells the label. Senses that are linked as antonyms or near adjectives
stay on one side of the split, a tenth of these groups is ``validation``, and pairs across are left
out: no sense of a validation pair is in a training pair. (Its words may be, in another meaning.)
"""

import hashlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PARTS = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
_KIND_OF, _NEAR, _OPPOSITE = "@", "&", "!"
_SEED = 0
MOST_UNRELATED = 4


class Link(NamedTuple):
    """A pointer from a sense (or one of its words) to another; words count from 0, None: all."""

    symbol: str
    source: str
    word: int | None
    target: str
    other: int | None


class Pair(NamedTuple):
    """A word of a sense and a word of another, by their senses and places."""

    source: str
    word: int
    target: str
    other: int


def lines_of(path: Path) -> Iterator[str]:
    """The lines of one of WordNet's files, without the licence at its head."""
    with open(path, encoding="utf-8") as file:
        yield from (line for line in file if not line.startswith("  "))


def links(folder: Path) -> Iterator[Link]:
    """The pointers of the kinds that are used, in the order of the files."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in lines_of(folder / f"data.{part}"):
            cells = line.split(" | ", 1)[0].split(" ")
            at = 4 + 2 * int(cells[3], 16)
            for i in range(int(cells[at])):
                symbol, offset, kind, both = cells[at + 1 + 4 * i : at + 5 + 4 * i]
                if symbol in (_KIND_OF, _NEAR, _OPPOSITE):
                    words = (int(both[:2], 16) or None, int(both[2:], 16) or None)
                    first, second = (None if word is None else word - 1 for word in words)
                    target = f"{_PARTS[kind]}.{offset}"
                    yield Link(symbol, f"{part}.{cells[0]}", first, target, second)


class Relations:
    """What is related to what.

    Args:
      words: The words of each sense, by its key.
      found: The pointers.
    """

    def __init__(self, words: Mapping[str, list[str]], found: Iterable[Link]) -> None:
        self.words = words
        self.similar: list[Pair] = []
        self.opposite: list[Pair] = []
        antonyms: dict[str, list[tuple[str, int]]] = defaultdict(list)
        near: list[Link] = []
        self._group = {key: key for key in words}
        for link in found:
            if link.symbol == _KIND_OF:
                self.similar.append(Pair(link.source, 0, link.target, 0))
                continue
            self._join(link.source, link.target)
            if link.symbol == _NEAR:
                self.similar.append(Pair(link.source, 0, link.target, 0))
                near.append(link)
            else:
                other = link.other or 0
                antonyms[link.source].append((link.target, other))
                self.opposite.append(Pair(link.source, link.word or 0, link.target, other))
        for link in near:
            for target, other in antonyms.get(link.target, ()):
                self.opposite.append(Pair(link.source, 0, target, other))
        for key, own in words.items():
            self.similar += [Pair(key, i, key, j) for i, j in itertools.pairwise(range(len(own)))]

    def _join(self, first: str, second: str) -> None:
        self._group[self.group(first)] = self.group(second)

    def group(self, key: str) -> str:
        """Of the senses that stay together, the one that stands for all."""
        while self._group[key] != key:
            self._group[key] = self._group[self._group[key]]
            key = self._group[key]
        return key

    def held_out(self, key: str) -> bool:
        """Whether a sense is one of those to validate with."""
        return hashlib.sha256(self.group(key).encode()).digest()[0] < 26  # of 256: a tenth

    def split(self, pair: Pair) -> str | None:
        """The split of a pair; None where its senses are of two."""
        first, second = self.held_out(pair.source), self.held_out(pair.target)
        return None if first != second else "validation" if first else "train"


def labelled(relations: Relations, definitions: Mapping[str, str]) -> list[dict[str, Any]]:
    """As many pairs of each label, for each split and part of speech."""
    draw, rows = random.Random(_SEED), []
    known = {(p.source, p.target) for p in (*relations.similar, *relations.opposite)}
    groups: dict[tuple[str, str], tuple[list[Pair], list[Pair]]] = defaultdict(lambda: ([], []))
    for i, pairs in enumerate((relations.similar, relations.opposite)):
        for pair in dict.fromkeys(pairs):
            if (split := relations.split(pair)) is not None:
                groups[split, pair.source.partition(".")[0]][i].append(pair)
    for (split, _), (similar, opposite) in sorted(groups.items()):
        count = min(len(similar), len(opposite))
        chosen = draw.sample(similar, count) + draw.sample(opposite, count)
        unrelated = []
        for pair in draw.sample(chosen, count):
            other = draw.choice(chosen)
            while (pair.source, other.target) in known or pair.source == other.target:
                other = draw.choice(chosen)
            unrelated.append(Pair(pair.source, pair.word, other.target, other.other))
        labels = ["similar"] * count + ["opposite"] * count + ["unrelated"] * count
        for pair, label in zip(chosen + unrelated, labels, strict=True):
            query, positive = _texts(relations, definitions, pair)
            key = ".".join([label, *map(str, pair)])
            row = {"key": key, "query": query, "positive": positive, "label": label}
            rows.append(row | {"split": split})
    draw.shuffle(rows)
    return rows


def triplets(
    relations: Relations, definitions: Mapping[str, str], *, unrelated: int = MOST_UNRELATED
) -> list[dict[str, Any]]:
    """For each sense with a similar word, that, its opposites and some that are unrelated; senses
    that have neither are left out."""
    draw, rows = random.Random(_SEED), []
    opposites: dict[str, list[Pair]] = defaultdict(list)
    for pair in relations.opposite:
        opposites[pair.source].append(pair)
    chosen = {pair.source: pair for pair in relations.similar if relations.split(pair)}
    others: dict[tuple[str | None, str], list[Pair]] = defaultdict(list)
    for pair in chosen.values():
        others[relations.split(pair), pair.source.partition(".")[0]].append(pair)
    related = {(p.source, p.target) for p in (*relations.similar, *relations.opposite)}
    for key, pair in chosen.items():
        split = relations.split(pair)
        query, positive = _texts(relations, definitions, pair)
        wrong = [p for p in opposites[key] if relations.split(p) == split]
        pool = others[split, key.partition(".")[0]]
        drawn = draw.sample(pool, min(unrelated, len(pool)))
        wrong += [p for p in drawn if (key, p.target) not in related and p.target != key]
        texts = dict.fromkeys(relations.words[p.target][p.other] for p in wrong)
        negatives = [text for text in texts if text != positive]
        row = {"key": key, "query": query, "positive": positive, "negatives": negatives}
        if negatives:
            rows.append(row | {"split": split})
    return rows


def _texts(relations: Relations, definitions: Mapping[str, str], pair: Pair) -> tuple[str, str]:
    word = relations.words[pair.source][pair.word]
    return f"{word}: {definitions[pair.source]}", relations.words[pair.target][pair.other]
