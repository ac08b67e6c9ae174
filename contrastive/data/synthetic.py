"""``data.source = "synthetic"``: random pairs of any size, without files, for plans, dry runs and
throughput.

Pair i is a function of (seed, i): uniform bytes as pixels, and a text of random length from uniform
token ids. Batch k holds the pairs ``k·B … k·B + B − 1``, modulo ``data.synthetic.examples``, so a
position is one number and does not depend on processes or threads. There is nothing to learn but
the pairs themselves, and nothing to evaluate on.
"""

import grain
import numpy as np
import tokenizers
from jaxtyping import Int32, UInt8
from tokenizers import models, pre_tokenizers

from contrastive.data.batches import Batch, Batches
from contrastive.data.config import DataConfig
from contrastive.data.draws import example_keys, uniform
from contrastive.data.records import Record
from contrastive.data.tokenizer import MARKERS, Tokenizer
from contrastive.data.transforms import naflex_cut
from contrastive.errors import DataError

_ENDLESS = 1 << 40  # more steps than any run has


def pixels(seed: int, index: np.ndarray, image_size: int) -> UInt8[np.ndarray, "batch size size 3"]:
    """Uniform bytes for each pair: SFC64 seeded by a hash of (seed, index)."""
    size = image_size * image_size * 3
    rows = np.empty((len(index), size), np.uint8)
    for row, key in zip(rows, example_keys(seed, index).tolist(), strict=True):
        words = np.random.SFC64(key).random_raw(-(-size // 8))
        row[:] = words.astype("<u8", copy=False).view(np.uint8)[:size]
    return rows.reshape(-1, image_size, image_size, 3)


def tokens(seed: int, index: np.ndarray, tokenizer: Tokenizer) -> Int32[np.ndarray, "batch length"]:
    """Texts of one to as many words as fit, between the tokenizer's markers, then padding."""
    head = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    tail = [] if tokenizer.end_id is None else [tokenizer.end_id]
    markers = {tokenizer.pad_id, *head, *tail}
    words = np.setdiff1d(np.arange(tokenizer.vocabulary_size, dtype=np.int32), list(markers))
    room = tokenizer.length - len(head) - len(tail)
    draws = uniform(example_keys(seed, index), "synthetic text", room + 1)
    count = 1 + (draws[:, :1] * room).astype(np.int64)
    chosen = words[(draws[:, 1:] * len(words)).astype(np.int64)]
    place = np.arange(room)[None, :]
    ids = np.full((len(index), tokenizer.length), tokenizer.pad_id, np.int32)
    ids[:, : len(head)] = head
    body = ids[:, len(head) : len(head) + room]
    body[:] = np.where(place < count, chosen, tokenizer.pad_id)
    for i, token in enumerate(tail):
        np.put_along_axis(ids, len(head) + count + i, token, axis=1)
    return ids


def synthetic_tokenizer(config: DataConfig) -> Tokenizer:
    """A vocabulary of exactly ``data.tokenizer.vocabulary_size`` entries: padding, begin, end, one
    for unknown words, and ``w4``, ``w5``, …"""
    settings = config.tokenizer
    names = [*MARKERS, "<|unknown|>"]
    names += [f"w{i}" for i in range(len(names), settings.vocabulary_size)]
    vocabulary = {name: i for i, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return Tokenizer(backend, length=config.text_length, config=settings)


class SyntheticSource:
    """The number of pairs; they exist only as batches, so there is no record to show."""

    def __init__(self, config: DataConfig) -> None:
        self._examples = config.synthetic.examples

    def __len__(self) -> int:
        return self._examples

    def __getitem__(self, index: int, /) -> Record:
        raise DataError("synthetic pairs are random: there are no pictures to show or to search.")


class SyntheticLoader(Batches):
    """Training batches without end; what :class:`contrastive.data.pipeline.BatchLoader` is for
    records."""

    def __init__(
        self,
        config: DataConfig,
        tokenizer: Tokenizer,
        *,
        batch_size: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            seed=seed,
            process_index=process_index,
            process_count=process_count,
        )
        self._config, self._tokenizer = config, tokenizer
        ahead = config.prefetch
        options = grain.ReadOptions(
            num_threads=min(config.threads, ahead), prefetch_buffer_size=ahead
        )
        steps = grain.MapDataset.range(_ENDLESS).map(self._load)
        self._iterator = steps.to_iter_dataset(options).__iter__()

    def _load(self, step: int) -> Batch:
        begin = int(step) * self._batch_size + self._part[0] * self._rows
        index = np.arange(begin, begin + self._rows, dtype=np.int64)
        index %= self._config.synthetic.examples
        return {
            "image": self._images(index),
            "text": tokens(self._seed, index, self._tokenizer),
            "id": index.astype(np.int32),
            "example": index,
        }

    def _images(self, index: np.ndarray) -> np.ndarray:
        config = self._config
        squares = pixels(self._seed, index, config.image_size)
        if config.preprocessing != "naflex":
            return squares
        return np.stack([naflex_cut(x, config.patches, config.resize.patch) for x in squares])

    def __next__(self) -> Batch:
        return next(self._iterator)

    @property
    def fingerprint(self) -> str:
        """Number and sizes of the pairs."""
        config = self._config
        sizes = (config.synthetic.examples, config.image_size, config.text_length)
        return f"synthetic {sizes} {self._tokenizer.vocabulary_size}"
