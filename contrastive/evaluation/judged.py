"""Evaluation of judged pairs of texts: labels against people's, scores against wrong passages."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

from contrastive.data.examples import Examples
from contrastive.evaluation.measured import Measured


@dataclasses.dataclass(frozen=True)
class LabelledPairs:
    """Pairs of texts and the label of each; ``labels`` are the names that numbers stand for."""

    name: str
    queries: Sequence[str]
    positives: Sequence[str]
    numbers: Int32[np.ndarray, " pairs"]
    labels: Sequence[str]

    def measure(self, model: Any, compare: Any) -> Measured:
        """``classification/accuracy`` beside chance and the commonest label, and the share of each
        label's pairs that are recognised; ``compare`` is not needed."""
        said = model.judge(self.queries, self.positives).argmax(axis=1)
        hit = said == self.numbers
        results, start = Measured(), "classification/"
        results.mean(f"{start}accuracy", hit.astype(np.float64))
        results[f"{start}accuracy_chance"] = 1 / len(self.labels)
        counts = np.bincount(self.numbers, minlength=len(self.labels))
        results[f"{start}accuracy_majority"] = float(counts.max() / len(hit))
        results[f"{start}pairs"] = float(len(hit))
        for number, label in enumerate(self.labels):
            own = self.numbers == number
            results[f"{start}recall_{label}"] = float(hit[own].mean()) if own.any() else None
        return results

    def baseline(self) -> Measured:
        """Nothing: chance and majority are beside the numbers."""
        return Measured()

    def contents(self) -> list[str]:
        """What the set consists of, to tell it from others."""
        return [*self.queries, *self.positives, *map(str, self.numbers.tolist())]


@dataclasses.dataclass(frozen=True)
class RankedPassages:
    """Queries, each with its own passage and some that are not."""

    name: str
    queries: Sequence[str]
    positives: Sequence[str]
    negatives: Sequence[Sequence[str]]

    def measure(self, model: Any, compare: Any) -> Measured:
        """``relevance/recall@1`` and ``mrr``: where a query's own passage comes among all of its
        passages by the model's score (of equal scores, by chance); ``compare`` is not needed."""
        queries = [q for q, some in zip(self.queries, self.negatives, strict=True) for _ in some]
        wrong = [text for some in self.negatives for text in some]
        own = model.judge(self.queries, self.positives)[:, 0]
        against = np.split(
            model.judge(queries, wrong)[:, 0],
            np.cumsum([len(some) for some in self.negatives])[:-1],
        )
        first, reciprocal = [], []
        for score, others in zip(own, against, strict=True):
            above, equal = int((others > score).sum()), int((others == score).sum())
            first.append(0.0 if above else 1 / (equal + 1))
            places = np.arange(above + 1, above + equal + 2)
            reciprocal.append(float(np.mean(1 / places)))
        results = Measured({"relevance/queries": float(len(own))})
        results.mean("relevance/recall@1", np.array(first))
        results.mean("relevance/mrr", np.array(reciprocal))
        chance = [1 / (len(some) + 1) for some in self.negatives]
        results["relevance/recall@1_chance"] = float(np.mean(chance))
        return results

    def baseline(self) -> Measured:
        """Nothing: chance is beside the numbers."""
        return Measured()

    def contents(self) -> list[str]:
        """What the set consists of, to tell it from others."""
        return [*self.queries, *self.positives, *(t for some in self.negatives for t in some)]


def judged_pairs(
    name: str, found: Examples, labels: Sequence[str]
) -> LabelledPairs | RankedPassages | None:
    """The set of a split: with labels, or of the queries that come with negatives of other content;
    None where there is no such query."""
    if found.labels is not None:
        return LabelledPairs(name, found.queries, found.captions, found.labels, labels)
    others = [
        [text for text, its in zip(texts, ids, strict=True) if its != own]
        for texts, ids, own in zip(
            found.negatives, found.negative_ids, found.ids.tolist(), strict=True
        )
    ]
    kept = [i for i, some in enumerate(others) if some]
    if not kept:
        return None
    queries, captions = ([side[i] for i in kept] for side in (found.queries, found.captions))
    return RankedPassages(name, queries, captions, [others[i] for i in kept])


def triplet_accuracy(model: Any, found: RankedPassages) -> Measured:
    """``triplets/accuracy``: how often a query's row lies nearer to its passage's than to that of
    its first negative (equal cosines: half), beside a chance of a half."""
    query = model.encode_text(list(found.queries), role="query")
    right = model.encode_text(list(found.positives), role="passage")
    wrong = model.encode_text([some[0] for some in found.negatives], role="passage")
    near, far = ((query * rows).sum(axis=1) for rows in (right, wrong))
    results = Measured({"triplets/pairs": float(len(query)), "triplets/accuracy_chance": 0.5})
    results.mean("triplets/accuracy", (near > far) + 0.5 * (near == far))
    return results
