"""Broader terms: what a text also says without saying it.

Behind the words of a caption stand those that they are kinds of, by WordNet (Miller: WordNet, a
lexical database for English, 1995): "zebra" becomes "zebra equine odd_toed_ungulate ... mammal ...
animal". A picture of an animal whose name no training caption has is then told from a house, since
"animal" was learned from others; and a text asked for may have words that training never saw.

Of each noun and verb one sense is known, what a picture likeliest shows:
``experiments.data.broader_terms`` makes the list and says how it chooses.
"""

import functools
import gzip
import importlib.resources
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

FILE = "wordnet_broader.txt.gz"
_WORDS = re.compile(r"\w+|[^\w\s]+")
_LONGEST = 4  # words of an entry: "jack in the box"
_PLURALS = (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x"), ("s", ""))
# Not names of things, though WordNet has nouns that are spelled so ("in": indium).
_SMALL = frozenset(re.findall(r"\w+", """
    a an and as at be by do for he i in is it me no of on or so the to us
"""))  # fmt: skip
# Above these stands nearly everything, so that they tell nothing.
_TOO_BROAD = frozenset(re.findall(r"\w+", """
    entity physical_entity abstraction object whole matter attribute measure relation
    psychological_feature causal_agent
"""))  # fmt: skip


class _Senses(NamedTuple):
    """Columns of the file, a row a sense; ``of_word`` tells the row of each word."""

    first: list[list[str]]
    kinds: list[list[int]]
    of_word: dict[str, int]


def key_of(word: str) -> str:
    """The spelling in which words are looked up: in lower case, its parts joined by ``_``."""
    return "_".join(re.findall(r"\w+", word.lower()))


def with_broader_terms(text: str, most: int) -> str:
    """A text in lower case with broader terms behind it.

    Args:
      text: Any text. The longest entries are taken: of "oncoming police car" those of "police car".
      most: Broader terms at most for each entry, the nearest first; up to three words that mean the
        same ("auto", "automobile") come before them.

    Returns:
      The words, then the terms, each term once and none that the text says itself. Terms of several
      words are joined by ``_``.
    """
    parts = unicodedata.normalize("NFKC", text).lower().split(",")
    words = [word for part in parts for word in _WORDS.findall(part)]
    terms = dict.fromkeys(term for part in parts for term in _terms(part, most))
    return " ".join([*words, *(term for term in terms if term not in words)])


@functools.lru_cache(maxsize=65_536)
def _terms(part: str, most: int) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for row in _entries(_WORDS.findall(part)) if most else ():
        synonyms, kinds = _broader(row)
        found |= dict.fromkeys(synonyms) | dict.fromkeys(kinds[:most])
    return tuple(found)


def _entries(words: list[str]) -> Iterator[int]:
    """The senses of the longest entries, from left to right."""
    start = 0
    while start < len(words):
        counts = range(min(_LONGEST, len(words) - start), 0, -1)
        senses = ((_look_up(" ".join(words[start : start + n])), n) for n in counts)
        row, count = next(((row, n) for row, n in senses if row is not None), (None, 1))
        start += count
        if row is not None:
            yield row


def _look_up(entry: str) -> int | None:
    known, key = _senses().of_word, key_of(entry)
    if key in _SMALL or not key:
        return None
    forms = [key, *(key[: -len(s)] + one for s, one in _PLURALS if key.endswith(s))]
    return next((known[form] for form in forms if form in known), None)


@functools.cache
def _broader(row: int) -> tuple[list[str], list[str]]:
    """The first words of a sense, and the first word of all that it is a kind of, the nearest
    first."""
    senses, rows = _senses(), [row]
    for above in rows:
        rows += [kind for kind in senses.kinds[above] if kind not in rows]
    kinds = [senses.first[i][0] for i in rows[1:]]
    return senses.first[row], [kind for kind in kinds if kind not in _TOO_BROAD]


@functools.cache
def _senses() -> _Senses:
    packed = importlib.resources.files("contrastive.data").joinpath("vocabularies", FILE)
    first, kinds, of_word = [], [], {}
    for row, line in enumerate(gzip.decompress(packed.read_bytes()).decode().splitlines()):
        label, above, words = line.split("\t")
        first.append(label.split())
        kinds.append([int(i) for i in above.split(",") if i])
        of_word |= dict.fromkeys(words.split(), row)
    return _Senses(first, kinds, of_word)
