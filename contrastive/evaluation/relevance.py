"""Which items are right for which query, and how right."""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from contrastive.errors import DataError, MeasureError


@dataclasses.dataclass(frozen=True)
class Relevance:
    """The right items of every query, as one list of pairs in the order of the queries.

    Attributes:
      starts: The pairs of query i are ``starts[i]:starts[i + 1]``.
      items: The item of each pair.
      gains: How right each is, positive; 1 where nothing else is known.
    """

    starts: Int[np.ndarray, "queries_and_one"]
    items: Int[np.ndarray, "pairs"]
    gains: Float[np.ndarray, "pairs"]

    @property
    def counts(self) -> Int[np.ndarray, "queries"]:
        """Right items of each query."""
        return np.diff(self.starts)

    @property
    def rows(self) -> Int[np.ndarray, "pairs"]:
        """The query of each pair."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def of(self, queries: Int[np.ndarray, "some"]) -> Int[np.ndarray, "pairs"]:
        """The places of some queries' pairs, in the order of these queries."""
        counts = self.counts[queries]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(self.starts[queries], counts) + within

    def kept(self, keep: Bool[np.ndarray, "pairs"]) -> "Relevance":
        """Without some of the pairs."""
        return Relevance.from_pairs(
            self.rows[keep], self.items[keep], self.gains[keep], queries=len(self.counts)
        )

    @classmethod
    def from_pairs(
        cls,
        rows: Int[np.ndarray, "pairs"],
        items: Int[np.ndarray, "pairs"],
        gains: Float[np.ndarray, "pairs"] | None = None,
        *,
        queries: int,
    ) -> "Relevance":
        """From the query and the item of each pair, in any order."""
        order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=queries)
        gains = np.ones(len(rows)) if gains is None else gains[order].astype(np.float64)
        return cls(np.concatenate([[0], np.cumsum(counts)]), items[order], gains)

    @classmethod
    def from_ids(
        cls, query_ids: Int[np.ndarray, "queries"], item_ids: Int[np.ndarray, "items"]
    ) -> "Relevance":
        """Item j is right for query i where their content ids are equal.

        Args:
          query_ids: At least 0.
          item_ids: −1 is right for no query.

        Raises:
          MeasureError: There are no queries.
          ValueError: A query has no right item.
        """
        if not len(query_ids):
            raise MeasureError("there is nothing to rank for: 0 queries were given.")
        missing = ~np.isin(query_ids, item_ids) | (query_ids < 0)
        if missing.any():
            raise ValueError(
                f"{missing.sum()} of {len(query_ids)} queries have no matching item in the gallery "
                f"of {len(item_ids)}, the first is query {np.flatnonzero(missing)[0]} with id "
                f"{query_ids[missing][0]}."
            )
        order = np.argsort(item_ids, kind="stable")
        first = np.searchsorted(item_ids, query_ids, side="left", sorter=order)
        counts = np.searchsorted(item_ids, query_ids, side="right", sorter=order) - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        items = order[np.repeat(first, counts) + within]
        return cls(np.concatenate([[0], np.cumsum(counts)]), items, np.ones(len(items)))

    @classmethod
    def from_judgements(
        cls,
        judgements: Mapping[Hashable, Mapping[Hashable, float | int]],
        queries: Sequence[Hashable],
        items: Sequence[Hashable],
    ) -> "Relevance":
        """From qrels, ``{query: {item: gain}}``. Gains of 0 and below are not right.

        A right item that is not among the items counts as one that is never found, as in
        trec_eval: it gets the number −1.

        Raises:
          DataError: A judged query is not among the queries, or no right item among the items.
        """
        place = {name: i for i, name in enumerate(items)}
        known = set(queries)
        strangers = [name for name in judgements if name not in known]
        if strangers:
            raise DataError(
                f"{len(strangers)} judged queries are not among the {len(known)} queries, the "
                f"first is {strangers[0]!r}: do qrels and queries belong together?"
            )
        rows, columns, gains = [], [], []
        for i, name in enumerate(queries):
            for item, gain in judgements.get(name, {}).items():
                if gain > 0:
                    rows.append(i)
                    columns.append(place.get(item, -1))
                    gains.append(float(gain))
        if columns and max(columns) < 0:
            raise DataError(
                f"none of the {len(columns)} right items is among the {len(items)} items: do qrels "
                "and corpus belong together?"
            )
        return cls.from_pairs(
            np.array(rows, np.int64),
            np.array(columns, np.int64),
            np.array(gains, np.float64),
            queries=len(queries),
        )
