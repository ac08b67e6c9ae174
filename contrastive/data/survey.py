"""A look at a source: what its samples hold, what is wrong with some, how long each stage takes."""

import collections
import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.records import (
    DataErrors,
    IndexedSource,
    Pairs,
    SampleError,
    Source,
    check_words,
)
from contrastive.data.tokenizer import Tokenizer
from contrastive.data.transforms import decode_image, evaluation_image
from contrastive.errors import DataError

_SIGNATURES = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG",),
    "gif": (b"GIF8",),
    "tiff": (b"II*\0", b"MM\0*"),
    "bmp": (b"BM",),
}
_QUANTILES = {"least": 0.0, "p5": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}
STAGES: tuple[str, ...] = ("read", "decode", "resize", "tokenize")


def picture_kind(data: bytes) -> str:
    """The format of an encoded picture, by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    for kind, signatures in _SIGNATURES.items():
        if data.startswith(signatures):
            return kind
    return "other"


@dataclasses.dataclass(frozen=True)
class Survey:
    """What was found in some samples of a source, evenly spaced.

    Attributes:
      samples: How many the source has.
      rows: Those that could be read.
      captions, keys: Of those (of pairs of texts: the positives; the queries count as pictures).
      characters, tokens, widths, heights, sizes: Of those; tokens count begin and end, and no more
        than fit; sizes are of the encoded pictures, in bytes.
      kinds: Formats of the pictures.
      truncated: Captions that are longer than the model's texts.
      repeated_captions, repeated_pictures: Samples whose caption (picture) came before.
      frequent: The captions that occur most often, if more than once.
      errors: What could not be read, what the index leaves out included.
      seconds: In each stage, in one thread.
    """

    samples: int
    rows: Sequence[int]
    captions: Sequence[str]
    keys: Sequence[str]
    characters: Sequence[int]
    tokens: Sequence[int]
    widths: Sequence[int]
    heights: Sequence[int]
    sizes: Sequence[int]
    kinds: Mapping[str, int]
    truncated: int
    repeated_captions: int
    repeated_pictures: int
    frequent: Mapping[str, int]
    errors: DataErrors
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain values."""
        looked_at = len(self.rows)
        return {
            "samples": self.samples,
            "looked_at": looked_at,
            "errors": self.errors.counts,
            "caption_characters": _quantiles(self.characters),
            "caption_tokens": _quantiles(self.tokens),
            "truncated_captions": self.truncated,
            "repeated_captions": self.repeated_captions,
            "repeated_pictures": self.repeated_pictures,
            "frequent_captions": dict(self.frequent),
            "width": _quantiles(self.widths),
            "height": _quantiles(self.heights),
            "picture_bytes": _quantiles(self.sizes),
            "picture_formats": dict(self.kinds),
            "microseconds": {
                stage: round(1e6 * seconds / max(looked_at, 1), 1)
                for stage, seconds in self.seconds.items()
            },
        }


def _quantiles(values: Sequence[int]) -> dict[str, float]:
    if not values:
        return {}
    found = np.quantile(np.array(values), list(_QUANTILES.values()))
    return {name: round(float(x), 1) for name, x in zip(_QUANTILES, found, strict=True)}


def survey(source: Source, config: DataConfig, tokenizer: Tokenizer, *, most: int) -> Survey:
    """Reads up to ``most`` samples, evenly spaced (0: all).

    Raises:
      DataError: The source is empty.
    """
    total = len(source)
    if not total:
        raise DataError("The data source is empty.")
    count = min(most or total, total)
    look = _Look(source, config)
    for i in range(count):
        look.at(i * total // count)
    began = time.perf_counter()
    ids, truncated = tokenizer.encode_counted(look.captions)
    look.seconds["tokenize"] = time.perf_counter() - began
    captions = collections.Counter(canonical(text) for text in look.captions)
    frequent = {text: n for text, n in captions.most_common(5) if n > 1}
    return Survey(
        samples=total,
        rows=look.rows,
        captions=look.captions,
        keys=look.keys,
        characters=[len(text) for text in look.captions],
        tokens=[len(tokenizer.pieces(row)) for row in ids],
        widths=look.widths,
        heights=look.heights,
        sizes=look.sizes,
        kinds=collections.Counter(look.kinds),
        truncated=truncated,
        repeated_captions=len(look.captions) - len(captions),
        repeated_pictures=len(look.digests) - len(set(look.digests)),
        frequent=frequent,
        errors=look.errors,
        seconds=look.seconds,
    )


class _Look:
    """Collects what a survey sees."""

    def __init__(self, source: Source, config: DataConfig) -> None:
        self._source = source
        self._pairs: Pairs = config.pairs
        self._shape = config.image_size, config.preprocessing, config.resize
        self.errors = DataErrors()
        if isinstance(source, IndexedSource):
            self.errors.include(source.errors)
        self.rows: list[int] = []
        self.captions: list[str] = []
        self.keys: list[str] = []
        self.widths: list[int] = []
        self.heights: list[int] = []
        self.sizes: list[int] = []
        self.kinds: list[str] = []
        self.digests: list[bytes] = []
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def at(self, index: int) -> None:
        key = f"sample {index}"
        try:
            record = self._timed("read", self._source.__getitem__, index)
            key = record["key"]
            check_words(record, self._pairs)
            if self._pairs != "texts":
                self._picture(record["image"])
        except SampleError as error:
            self.errors.add(index, error.key or key, error)
            return
        self.rows.append(index)
        self.captions.append((record["caption"] or "").strip())
        self.keys.append(key)
        first = record["image"] or canonical(record.get("query", "")).encode(
            "utf-8", "surrogatepass"
        )
        self.digests.append(hashlib.blake2b(first, digest_size=16).digest())

    def _picture(self, data: bytes) -> None:
        image: Image.Image = self._timed("decode", decode_image, data)
        self._timed("resize", evaluation_image, image, *self._shape)
        self.widths.append(image.width)
        self.heights.append(image.height)
        self.sizes.append(len(data))
        self.kinds.append(picture_kind(data))

    def _timed(self, stage: str, function: Any, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.seconds[stage] += time.perf_counter() - began
