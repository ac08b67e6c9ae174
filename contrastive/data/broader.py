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
import itertools
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from contrastive.errors import DataError

FILE = "wordnet_broader.txt.gz"
_LONGEST = 4  # words of an entry: "jack in the box"
_BREAKS = re.compile(r"[^\w\s'’-]")  # no entry reaches over these
_PLURALS = (
    *(("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("ses", "s"), ("xes", "x")),
    *(("men", "man"), ("s", "")),
)
# Not names of things, though WordNet has nouns and verbs that are spelled so ("in": indium).
_SMALL_WORDS = """
    an and are as at be by do for he in is it me no of on or so the to us am been being but can did
    does doing down from had has have having her hers him his how if into its may might more most
    must my not off one our ours out over own she should some such than that their them then there
    these they this those too under up very was we were what when where which who whom whose why
    will with would you your
"""
_SMALL = frozenset(_SMALL_WORDS.split())
# Above these stands nearly everything, so that they tell nothing.
_BROADEST = """
    entity physical_entity abstraction object whole matter attribute measure relation
    psychological_feature causal_agent
"""
_TOO_BROAD = frozenset(_BROADEST.split())
_T = TypeVar("_T")


class _Senses(NamedTuple):
    """Columns of the file, a row a sense; ``of_word`` tells the row of each word."""

    first: list[list[str]]
    kinds: list[list[int]]
    of_word: dict[str, int]


def key_of(word: str) -> str:
    """The spelling in which words are looked up: in lower case, its parts joined by ``_``."""
    return "_".join(re.findall(r"\w+", word.lower()))


def singulars(word: str) -> list[str]:
    """What a word is the regular plural of, if it is one."""
    return [word[: -len(end)] + one for end, one in _PLURALS if word.endswith(end)]


def upward(first: Iterable[_T], kinds: Callable[[_T], Iterable[_T]]) -> list[_T]:
    """``first``, what they are kinds of, what these are kinds of and so on, each once."""
    found = list(first)
    for one in found:
        found += [kind for kind in kinds(one) if kind not in found]
    return found


def with_broader_terms(text: str, most: int) -> str:
    """A text with broader terms behind it.

    Args:
      text: Any text. The longest entries are taken: of "oncoming police car" those of "police car".
      most: Broader terms at most for each entry, the nearest first; up to three words that mean the
        same ("auto", "automobile") come before them.

    Returns:
      The text as it is, then the terms in lower case, each once and no word that the text says
      itself. Terms of several words are joined by ``_``. The broadest are last, and are lost first
      where a text is cut.
    """
    if not most:
        return text
    segments = _BREAKS.split(unicodedata.normalize("NFKC", text).lower())
    words = [re.findall(r"\w+", segment) for segment in segments]
    found = [_broader(row, most) for part in words for row in _entries(part)]
    levels = itertools.chain.from_iterable(itertools.zip_longest(*found))
    said = {None, *itertools.chain.from_iterable(words)}
    return " ".join([text, *(term for term in dict.fromkeys(levels) if term not in said)])


def _entries(words: list[str]) -> Iterator[int]:
    """The senses of the longest entries, from left to right."""
    start = 0
    while start < len(words):
        counts = range(min(_LONGEST, len(words) - start), 0, -1)
        senses = ((_look_up("_".join(words[start : start + n])), n) for n in counts)
        row, count = next(((row, n) for row, n in senses if row is not None), (None, 1))
        start += count
        if row is not None:
            yield row


@functools.lru_cache(maxsize=65_536)
def _look_up(key: str) -> int | None:
    known = _senses().of_word
    forms = [] if key in _SMALL else [key, *singulars(key)]
    return next((known[x] for x in forms if x in known and len(x) > 1 and x not in _SMALL), None)


@functools.lru_cache(maxsize=65_536)
def _broader(row: int, most: int) -> list[str]:
    """The first words of a sense, and the first word of all that it is a kind of, the nearest
    first."""
    senses = _senses()
    _, *above = upward([row], senses.kinds.__getitem__)
    kinds = [senses.first[i][0] for i in above]
    return [*senses.first[row], *[kind for kind in kinds if kind not in _TOO_BROAD][:most]]


@functools.cache
def _senses() -> _Senses:
    packed = importlib.resources.files("contrastive.data").joinpath("vocabularies", FILE)
    first, kinds, of_word = [], [], {}
    try:
        lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{packed} cannot be read ({error}): install the package anew.") from error
    if not lines:
        raise DataError(f"{packed} is empty: install the package anew.")
    for row, line in enumerate(lines):
        label, above, words = line.split("\t")
        first.append(label.split())
        kinds.append([int(i) for i in above.split(",") if i])
        of_word |= dict.fromkeys(words.split(), row)
    return _Senses(first, kinds, of_word)
