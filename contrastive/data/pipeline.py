"""From records to batches, on grain.

The examples of global batch k are a pure function of (seed, k): an epoch is a permutation of the
examples, cut into whole batches; process i of n takes the i-th n-th of the rows. So the same global
batches come on any number of processes and threads, and a position is one number.

Small sets are read and decoded once before the first batch: what cannot be used is counted, named
and left out (:mod:`contrastive.data.examples`). Large sets are checked as they are read: the row of
a sample that cannot be used has weight 0 (:mod:`contrastive.data.unchecked`).
"""

import logging
import os
import pathlib
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import grain
import numpy as np
from jaxtyping import UInt64

from contrastive.data.augment import Picture
from contrastive.data.batches import Batch, Batches
from contrastive.data.config import DataConfig
from contrastive.data.draws import example_keys, shuffle_seed, uniform
from contrastive.data.examples import (
    EvaluationPairs,
    Examples,
    Progress,
    blank_pictures,
    read_evaluation_pairs,
    read_examples,
    read_pictures,
)
from contrastive.data.lanes import Lanes
from contrastive.data.mixture import Mixture
from contrastive.data.numbered import read_examples_with_negatives
from contrastive.data.pairs import make_batch
from contrastive.data.records import IndexedSource, SampleError, Source
from contrastive.data.sources import open_source
from contrastive.data.synthetic import SyntheticLoader
from contrastive.data.text_fields import TextFields
from contrastive.data.tokenizer import Tokenizer, load_tokenizer
from contrastive.data.unchecked import Account, Bad, Fetched, UncheckedExamples
from contrastive.data.webdataset import WebDatasetSource
from contrastive.errors import DataError, StorageError

__all__ = [
    "BatchLoader",
    "DataConfig",
    "EvaluationPairs",
    "Examples",
    "load_tokenizer",
    "open_batches",
    "open_source",
    "read_evaluation_pairs",
    "read_examples",
]

_log = logging.getLogger(__name__)
_BEFORE = 50_000  # sets of so many samples are read through before the first batch
_NICENESS = 10  # of the threads that make batches


def open_batches(
    source: Source, config: DataConfig, tokenizer: Tokenizer, **options: Any
) -> "BatchLoader | SyntheticLoader":
    """The training batches of the source that the config names; options as of
    :class:`BatchLoader`."""
    if config.source == "synthetic":
        options.pop("error_log", None)  # nothing can be wrong with them
        return SyntheticLoader(config, tokenizer, **options)
    return BatchLoader(source, config, tokenizer, **options)


def _check_fields(source: Source, config: DataConfig) -> None:
    """Of a set that is not read before: that a field or a file could hold negatives."""
    fields = getattr(source, "fields", None)
    if config.negatives and isinstance(fields, TextFields) and not fields.brings_negatives:
        raise DataError(
            f"config.data.negatives = {config.negatives}, but {fields.where} has no field for "
            f"negatives: its fields are {', '.join(map(repr, fields.found))}. Set "
            "config.data.fields.negatives to the name of yours."
        )


def _check_negatives(examples: Examples, config: DataConfig) -> None:
    if not config.negatives or config.mined.every:
        return
    some = sum(map(bool, examples.negatives))
    if some:
        if 2 * some < len(examples):
            _log.warning(
                "Only %s of the %s pairs come with hard negatives.",
                f"{some:,}",
                f"{len(examples):,}",
            )
        return
    file = config.fields.negatives_file
    raise DataError(
        f"config.data.negatives = {config.negatives}, but none of the {len(examples):,} pairs "
        "comes with a negative: set config.data.fields.negatives to the field that holds them"
        + ("." if file is None else f", or see whether the keys in {file} are those of the pairs.")
    )


def _check_contents(examples: Examples, config: DataConfig) -> None:
    contents = len(set(examples.ids.tolist()))
    if config.views.second == "content" and contents == len(examples):
        raise DataError(
            f"config.data.views.second = 'content', but no two of the {contents:,} pictures have "
            "the same content id (config.data.fields.id names the field that holds it)."
        )
    if contents == 1 and len(examples) > 1 and not config.fields.labels:
        _log.warning(
            "All %s pairs are equal in content, so none is a negative of another: there is nothing "
            "to tell apart. See config.data.content and config.data.fields.id.",
            f"{len(examples):,}",
        )


def _give_way() -> None:
    """Lets the train step go before this thread, which works on batches that are needed later."""
    if sys.platform == "linux" and threading.current_thread() is not threading.main_thread():
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < _NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)


class _Loaded(NamedTuple):
    batch: Batch
    truncated: int
    bad: Sequence[Bad]


class BatchLoader(Batches):
    """Training batches without end, in an order that is a function of the seed.

    A batch is a dict of NumPy arrays with this process's rows: the two halves of the pairs (of
    pictures with captions ``image`` uint8 ``[b, s, s, 3]`` and ``text`` int32 ``[b, length]``; the
    other kinds: :mod:`contrastive.data.pairs`), ``id`` int32 ``[b]`` (of the content), ``example``
    int64 ``[b]`` (index in the source). Where samples are checked as they are read, ``id`` is
    uint32 ``[b, 2]``, and ``weight`` float32 ``[b]`` is 0 in the rows of bad ones. Of each epoch
    the last ``dropped_per_epoch`` examples, which fill no batch, are left out; others in each
    epoch.

    Attributes:
      errors: The samples that were skipped, as far as this process knows.
      steps_per_epoch, dropped_per_epoch: How the epoch divides. Of a mixture, an epoch is as many
        samples as all parts have, and each part has its own (:meth:`parts`).
      truncated_captions: Captions cut in the rows that this loader has delivered.
    """

    def __init__(
        self,
        source: Source,
        config: DataConfig,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        error_log: pathlib.Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Starts at the first batch; ``config.check`` says whether every sample is read before.

        Args:
          source: The records.
          config: Sizes, augmentation, captions, threads.
          tokenizer: Turns captions to ids.
          batch_size: Rows of the global batch.
          seed: Of the order and of all randomness.
          process_index: Which part of each batch is delivered.
          process_count: Into how many parts it is cut.
          error_log: Where skipped samples are listed. If they are found during the run, process i
            lists its own in ``NAME.i.jsonl``, the first one in ``NAME.jsonl``.
          progress: Is told how many of how many samples are read.

        Raises:
          DataError: Too few usable samples.
          ConfigError: The batch does not divide over the processes.
        """
        super().__init__(
            batch_size=batch_size,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
        )
        self._source, self._config, self._tokenizer = source, config, tokenizer
        self.examples: Examples | UncheckedExamples
        self._account: Account | None = None
        small = len(source) <= _BEFORE or not isinstance(source, IndexedSource)
        small &= not config.stream.lanes
        whole = config.check == "before" or config.views.second == "content"
        whole |= config.mined.every > 0 or config.numbered
        if whole or (config.check == "auto" and small):
            log = error_log if process_index == 0 else None
            self.examples = read_examples_with_negatives(
                source, config, error_log=log, progress=progress
            )
            self.errors = self.examples.errors
            _check_negatives(self.examples, config)
            _check_contents(self.examples, config)
        else:
            _check_fields(source, config)
            self.examples = UncheckedExamples(
                source,
                config,
                lambda record, key: read_pictures(record, config, key),
                blank_pictures(config),
            )
            if error_log is not None and process_index:
                error_log = error_log.with_suffix(f".{process_index}{error_log.suffix}")
            self._account = Account(source, config, error_log, self._rows)
            self.errors = self._account.errors
        self.steps_per_epoch, self.dropped_per_epoch = divmod(len(self.examples), batch_size)
        if not self.steps_per_epoch:
            raise DataError(
                f"There are {len(self.examples):,} usable samples, fewer than one batch: lower "
                f"config.batch_size = {batch_size}."
            )
        self.truncated_captions = 0
        self._iterator = self._dataset().__iter__()

    def _dataset(self) -> grain.IterDataset[_Loaded]:
        index, count = self._part
        if isinstance(self._source, Mixture):
            usable = self.examples.index if isinstance(self.examples, Examples) else None
            order = self._source.order(usable, self._seed, self._batch_size)
        elif self._config.stream.lanes:
            order = self._lanes()
        else:
            order = grain.MapDataset.range(len(self.examples))
            order = order.shuffle(seed=shuffle_seed(self._seed))
            order = order[: self.steps_per_epoch * self._batch_size].repeat()
        parts = order.batch(self._rows, drop_remainder=True, batch_fn=list)
        ahead = self._config.prefetch
        threads = min(self._config.threads, ahead)
        if self.examples.images is not None:
            threads = min(threads, 1)  # nothing is decoded, so several wait for the interpreter
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        return parts[index::count].map_with_index(self._load).to_iter_dataset(options)

    def _lanes(self) -> grain.MapDataset[int]:
        """The order of tars that are read one after another."""
        assert isinstance(self._source, WebDatasetSource)
        stream = self._config.stream
        return Lanes(
            self._source.starts,
            lanes=stream.lanes,
            window=stream.window,
            batch_size=self._batch_size,
            seed=self._seed,
        ).order()

    def _load(self, step: int, rows: list[int]) -> _Loaded:
        """One process's rows of global batch ``step``."""
        _give_way()
        begin = step * self._batch_size + self._part[0] * self._rows
        keys = example_keys(self._seed, np.arange(begin, begin + len(rows), dtype=np.int64))
        found = self._fetch(rows, keys)
        others = None
        if self._config.views.second == "content":
            others = self._fetch(self._examples_of_content(rows, keys), keys)
        batch, truncated = make_batch(found, keys, self._config, self._tokenizer, others)
        batch |= {"id": found.ids, "example": found.index}
        if found.weight is not None:
            batch["weight"] = found.weight
        return _Loaded(batch, truncated, found.bad)

    def _fetch(self, rows: list[int], keys: UInt64[np.ndarray, " batch"]) -> Fetched:
        if isinstance(self.examples, UncheckedExamples):
            return self.examples.fetch(rows, keys)
        return self.examples.fetch(rows, lambda index, i: self._pictures(index, keys[i : i + 1]))

    def _examples_of_content(
        self, rows: list[int], keys: UInt64[np.ndarray, " batch"]
    ) -> list[int]:
        """For each row another one of its content, drawn by its key; itself where it is alone."""
        assert isinstance(self.examples, Examples)
        draws = uniform(keys, "of the same content", 1)[:, 0]
        found = []
        for row, draw in zip(rows, draws.tolist(), strict=True):
            others = [other for other in self.examples.of_content[row] if other != row]
            found.append(others[int(draw * len(others))] if others else row)
        return found

    def _pictures(self, index: int, key: UInt64[np.ndarray, " 1"]) -> list[Picture]:
        try:
            return read_pictures(self._source[index], self._config, key)
        except SampleError as error:
            raise StorageError(
                f"Sample {error.key or index} could be read when the run started and no longer "
                f"can: {error}. Put it back and run the same command again to go on, or start a "
                "new run without it."
            ) from error

    def __next__(self) -> Batch:
        try:
            loaded = next(self._iterator)
            if self._account is not None:
                self._account.add(loaded.bad)
        except BaseException:
            self.close()
            raise
        self.truncated_captions += loaded.truncated
        return loaded.batch

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self.step // self.steps_per_epoch

    def state(self) -> dict[str, Any]:
        """The position. Where samples are checked as they are read, ``bad`` has the number of this
        part's bad rows so far; those of all parts, taken together, are part of what is restored."""
        if self._account is None:
            return super().state()
        return super().state() | {"bad": {str(self._part[0]): self._account.bad}}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues with the batch that follows ``state``, and with its count of bad rows; cut into
        another number of parts, each has an equal share of them.

        Raises:
          DataError: The state belongs to other data, another seed or another batch size.
        """
        super().restore(state)
        if self._account is not None:
            (part, parts), bad = self._part, state.get("bad", {})
            equal = round(sum(bad.values()) / parts)
            self._account.begin(
                state["step"], bad.get(str(part), 0) if len(bad) == parts else equal
            )

    def skipped(self, step: int) -> int:
        """Samples that were found unusable up to a step, by this process; each once."""
        return len(self.errors) if self._account is None else self._account.skipped(step)

    def parts(self, step: int | None = None) -> dict[str, dict[str, int | float]]:
        """Of a mixture, samples delivered up to a step (None: so far) and epochs completed of each
        part, over all processes."""
        if not isinstance(self._source, Mixture):
            return {}
        step = self.step if step is None else step
        edges = self._source.starts
        if isinstance(self.examples, Examples):
            edges = np.searchsorted(self.examples.index, edges)
        return self._source.counts(step * self._batch_size, np.diff(edges).tolist())

    @property
    def fingerprint(self) -> str:
        """Of the usable samples: their captions, content and order."""
        return self.examples.fingerprint
