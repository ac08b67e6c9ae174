"""Hard negatives: passages that rank high for a query and do not belong to it.

Candidates are ranked by BM25 or by a model (exactly, in blocks). A candidate of the query's own
content is never taken, whatever its rank; a window of ranks and limits on the score leave out what
is too near to be wrong. (Such limits are those of the miner of sentence-transformers.) A
cross-encoder may read what is left and throw out what belongs to the query after all.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Int32

from contrastive.errors import ConfigError, UserError
from contrastive.evaluation.placing import check_finite

BLOCK_ROWS = 512  # queries whose scores are held at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiningConfig:
    """Which of the ranked candidates are taken."""

    count: int = 1  # negatives a query, at most
    skip: int = 0  # so many of the best candidates are left out
    window: int = 100  # candidates beyond this rank are not looked at
    margin: float | None = None  # a negative scores at least so much less than the positive
    relative_margin: float | None = None  # the same, as a share of the positive's score
    max_score: float | None = None  # a negative scores at most this

    def __post_init__(self) -> None:
        if self.count < 1 or self.skip < 0 or self.window < self.skip + self.count:
            raise ConfigError(
                f"mining takes {self.count} of the candidates from rank {self.skip + 1} to "
                f"{self.window}: count has to be at least 1, and window at least skip + count."
            )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Queries and the passages among which their negatives are; equal ids are equal content.

    Attributes:
      queries, query_ids: What is searched with.
      own: The passage that belongs to each query, by its place.
      passages: Distinct passages.
    """

    queries: Sequence[str]
    query_ids: Int32[np.ndarray, " queries"]
    own: Int[np.ndarray, " queries"]
    passages: Sequence[str]

    @classmethod
    def of(
        cls, queries: Sequence[str], positives: Sequence[str], ids: Int32[np.ndarray, " pairs"]
    ) -> "Corpus":
        """The corpus of pairs; a passage that occurs several times counts once."""
        place: dict[str, int] = {}
        own = [place.setdefault(text, len(place)) for text in positives]
        return cls(queries, ids, np.array(own, np.int64), list(place))

    def right(self) -> list[Int[np.ndarray, " some"]]:
        """The passages of each query's content: its own and those of the other queries of its id.
        (One passage may belong to queries of several ids.)"""
        places: dict[int, set[int]] = {}
        for identity, place in zip(self.query_ids.tolist(), self.own.tolist(), strict=True):
            places.setdefault(identity, set()).add(place)
        of_content = {identity: np.array(sorted(some)) for identity, some in places.items()}
        return [of_content[identity] for identity in self.query_ids.tolist()]


Scores = Callable[[range], Float32[np.ndarray, "some passages"]]
"""Scores of some queries with all passages."""


def mine(corpus: Corpus, scores: Scores, config: MiningConfig) -> Iterator[list[int]]:
    """For each query the passages that are its hard negatives, the hardest first (of equal scores
    the first in the corpus).

    Args:
      corpus: Queries and passages.
      scores: Of queries with passages, higher is nearer; called for blocks of queries.
      config: What is taken.

    Yields:
      Places of passages, at most ``config.count``; fewer where fewer qualify.
    """
    right = corpus.right()
    for start in range(0, len(corpus.queries), BLOCK_ROWS):
        block = range(start, min(start + BLOCK_ROWS, len(corpus.queries)))
        found = scores(block)
        own = found[np.arange(len(block)), corpus.own[block.start : block.stop]]
        found = found.copy()
        for row, query in enumerate(block):
            found[row, right[query]] = -np.inf
        most = min(config.window, found.shape[1])
        least = -np.partition(-found, most - 1, axis=1)[:, most - 1]
        for row, positive in enumerate(own):
            kept = np.flatnonzero((found[row] >= least[row]) & (found[row] > -np.inf))
            ranked = kept[np.argsort(-found[row, kept], kind="stable")][:most]
            score = found[row, ranked]
            fits = np.arange(len(ranked)) >= config.skip
            if config.margin is not None:
                fits &= score <= positive - config.margin
            if config.relative_margin is not None:
                fits &= score <= positive - config.relative_margin * abs(positive)
            if config.max_score is not None:
                fits &= score <= config.max_score
            yield ranked[fits][: config.count].tolist()


Judge = Callable[[Sequence[str], Sequence[str]], Float32[np.ndarray, " pairs"]]
"""How likely passages belong to queries, pair by pair: probabilities."""


def without_false(
    corpus: Corpus, mined: Iterator[list[int]], judge: Judge, *, below: float, count: int
) -> Iterator[list[int]]:
    """Of the negatives of each query the first that a judge finds unlikely to belong to it.

    Args:
      corpus: Queries and passages.
      mined: Candidates of each query, the hardest first, more than are wanted.
      judge: Reads the pairs of some queries at a time.
      below: The probability from which on a candidate is a false negative.
      count: Negatives a query, at most.

    Yields:
      Places of passages; fewer where fewer are left.
    """
    queries = iter(range(len(corpus.queries)))
    while block := list(itertools.islice(zip(queries, mined, strict=False), BLOCK_ROWS)):
        pairs = [(query, passage) for query, some in block for passage in some]
        found = judge(
            [corpus.queries[query] for query, _ in pairs],
            [corpus.passages[passage] for _, passage in pairs],
        )
        likely = iter(np.asarray(found).tolist())
        for _, some in block:
            yield [passage for passage in some if next(likely) < below][:count]


def bm25(corpus: Corpus) -> Scores:
    """Scores by BM25 (Robertson et al. 1994), of the library bm25s: words in lower case, without
    the commonest English ones. A passage without any of the query's words is no candidate.

    Raises:
      UserError: The library is not installed, or the passages have no words.
    """
    try:
        import bm25s  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "BM25 needs the library bm25s: pip install -e '.[mine]'. Or mine with a run."
        ) from error
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    options = {"stopwords": "en", "show_progress": False}
    index = bm25s.BM25()
    passages: Any = bm25s.tokenize(list(corpus.passages), **options)
    if not any(map(len, passages.ids)):
        raise UserError(
            "BM25 finds no word in the passages: it knows words of two letters or more, and leaves "
            "out the commonest English ones. Mine with a run."
        )
    index.index(passages, show_progress=False)
    words: Any = bm25s.tokenize(list(corpus.queries), return_ids=False, **options)

    def scores(block: range) -> np.ndarray:
        rows = np.full((len(block), len(corpus.passages)), -np.inf, np.float32)
        for i, query in enumerate(block):
            known = [word for word in words[query] if word in index.vocab_dict]
            if known:
                row = index.get_scores(known)
                rows[i] = np.where(row > 0, row, -np.inf)
        return rows

    return scores


def cosine(
    queries: Float32[np.ndarray, "queries dim"], passages: Float32[np.ndarray, "passages dim"]
) -> Scores:
    """Scores by a model, from its unit rows: exact.

    Raises:
      MeasureError: A row is not finite.
    """
    check_finite(queries, passages, ("query", "passage"))
    return lambda block: queries[block.start : block.stop] @ passages.T
