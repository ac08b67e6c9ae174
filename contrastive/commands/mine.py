"""``contrastive mine``: a file of hard negatives for the pairs of a recipe."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from contrastive import mining
from contrastive.data.config import DataConfig
from contrastive.data.examples import Examples, read_examples
from contrastive.data.numbered import passages_of
from contrastive.data.records import Source
from contrastive.data.sources import open_source
from contrastive.data.text_fields import TextFields
from contrastive.errors import ConfigError, UserError
from contrastive.loading import load
from contrastive.mesh import Devices
from contrastive.recipe import Recipe
from contrastive.whole import whole_file

BM25 = "bm25"


@dataclasses.dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """A run with ``config.loss.name = 'relevance'`` that reads candidates before they are taken."""

    run: str  # its folder
    below: float = 0.5  # a candidate that belongs to the query with this probability is left out
    candidates: int = 10  # of each query that are read, at most

    def __post_init__(self) -> None:
        if not 0 < self.below <= 1 or self.candidates < 1:
            raise ConfigError(
                f"--below = {self.below} has to lie between 0 and 1, and --candidates = "
                f"{self.candidates} has to be at least 1."
            )


def mine(
    recipe: Recipe,
    output: pathlib.Path,
    config: mining.MiningConfig,
    *,
    by: str = BM25,
    judge: JudgeConfig | None = None,
    devices: Devices | None = None,
    stream: Any = sys.stdout,
) -> int:
    """Writes JSON Lines ``{"key": ..., "negatives": [...]}``, which
    ``config.data.fields.negatives_file`` reads; or where ``output`` ends in .npz the numbers of the
    samples whose positives they are, which ``config.data.fields.negatives_index`` reads.

    Args:
      recipe: Its training pairs are mined, each other's positives being the candidates.
      output: The file to write.
      config: Which candidates are taken.
      by: ``bm25``, or the folder of a run whose model ranks.
      judge: The cross-encoder that throws false negatives out; None: nothing is thrown out.
      devices: Where a model computes; None: all of this process.
      stream: Where it is said what was done.

    Raises:
      UserError: The recipe has no pairs of texts, these have no keys or keys that repeat (of which
        numbers have no need), numbers are asked for of a mixture, nothing was found, or the file
        cannot be written.
    """
    data = recipe.data
    if data.pairs != "texts":
        raise UserError(
            f"config.data.pairs = {data.pairs!r}: hard negatives are mined for pairs of texts."
        )
    by_number = output.suffix == ".npz"
    if by_number and data.mixture:
        raise UserError(
            f"--output={output}: the parts of a mixture are numbered each for itself. Mine each "
            "part with a recipe of its own, or write .jsonl."
        )
    source = open_source(data, "train")
    if not by_number:
        _check_keys(source, data)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror or error}.") from error
    found = read_examples(source, data)
    keys = [] if by_number else _keys(source, data, found)
    corpus = mining.Corpus.of(found.queries, found.captions, found.ids)
    if by == BM25:
        scores = mining.bm25(corpus)
    else:
        model = load(by, devices=devices)
        passages = model.encode_text(corpus.passages, role="passage")
        scores = mining.cosine(model.encode_text(corpus.queries), passages)
    if judge is None:
        mined = mining.mine(corpus, scores, config)
    else:
        mined = _judged(corpus, scores, config, judge, devices)
    lists = list(mined)
    if not any(lists):
        raise UserError("no pair has a hard negative within these limits; widen them.")
    with whole_file(output) as path:
        if by_number:
            _write_numbers(path, lists, corpus, found, len(source))
        else:
            _write_texts(path, lists, corpus, keys)
    print(
        f"{sum(map(len, lists)):,} negatives for {sum(map(bool, lists)):,} of {len(lists):,} pairs,"
        f" among {len(corpus.passages):,} passages by {by}, written to {output}.",
        file=stream,
    )
    return 0


def _write_texts(
    path: pathlib.Path, lists: Sequence[list[int]], corpus: mining.Corpus, keys: Sequence[str]
) -> None:
    lines = [
        json.dumps({"key": key, "negatives": [corpus.passages[i] for i in own]}, ensure_ascii=False)
        for key, own in zip(keys, lists, strict=True)
        if own
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_numbers(
    path: pathlib.Path,
    lists: Sequence[list[int]],
    corpus: mining.Corpus,
    found: Examples,
    samples: int,
) -> None:
    """A row for each sample of the source; of samples with one passage the first stands for it."""
    _, first = np.unique(corpus.own, return_index=True)
    numbers = np.full((samples, max(map(len, lists))), -1, np.int64)
    for sample, own in zip(found.index, lists, strict=True):
        numbers[sample, : len(own)] = found.index[first[own]]
    with open(path, "wb") as file:
        np.savez_compressed(file, negatives=numbers, passages=passages_of(found, samples))


def _judged(
    corpus: mining.Corpus,
    scores: mining.Scores,
    config: mining.MiningConfig,
    judge: JudgeConfig,
    devices: Devices | None,
) -> Iterator[list[int]]:
    """Negatives without those that a cross-encoder takes for answers."""
    model = load(judge.run, devices=devices)
    if model.recipe.loss.name != "relevance":
        raise UserError(
            f"{judge.run} scores no pairs, so it cannot judge negatives: train one with "
            "config.loss.name = 'relevance' (configs/sentence_bert.py:rank)."
        )
    more = dataclasses.replace(
        config,
        count=max(judge.candidates, config.count),
        window=max(config.window, config.skip + max(judge.candidates, config.count)),
    )

    def probability(queries: Sequence[str], passages: Sequence[str]) -> np.ndarray:
        score = model.judge(queries, passages)[:, 0]
        return np.exp(-np.logaddexp(0, -score)).astype(np.float32)

    candidates = mining.mine(corpus, scores, more)
    return mining.without_false(
        corpus, candidates, probability, below=judge.below, count=config.count
    )


def _check_keys(source: Source, data: DataConfig) -> None:
    fields = getattr(source, "fields", None)
    if isinstance(fields, TextFields) and fields.key is None:
        raise UserError(
            f"the pairs of {data.source} have no keys, by which negatives are found: set "
            "config.data.fields.key to a field that tells pairs apart."
        )


def _keys(source: Source, data: DataConfig, found: Examples) -> list[str]:
    """The key of every pair, each another."""
    keys = [source[int(i)]["key"] for i in found.index]
    if len(set(keys)) < len(keys):
        raise UserError(
            f"{data.source} has {len(keys) - len(set(keys)):,} pairs whose key another pair has "
            "too; negatives are found by key. Set config.data.fields.key to a field that tells "
            "pairs apart."
        )
    return keys
