"""Pictures of a data source as rows: read and encoded some at a time, never all held."""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32
from PIL import Image

from contrastive.data.captions import canonical
from contrastive.data.records import DataErrors, SampleError, Source
from contrastive.data.splits import content_ids
from contrastive.data.transforms import decode_image
from contrastive.errors import DataError
from contrastive.evaluation.sets import evenly

CHUNK = 512  # pictures that are held at a time
PIXELS = 1 << 26  # and pixels, as far as a single picture does not have more


@dataclasses.dataclass(frozen=True)
class EncodedPictures:
    """The pictures of a source and what is said of them.

    Attributes:
      rows: One unit row a picture.
      captions: What each sample says, one or more a picture.
      pictures: The picture of each caption.
      ids: Content ids of the captions: equal pictures or equal captions have equal ones.
      skipped: Samples that could not be read.
      content: A digest of pictures and captions, in order.
    """

    rows: Float32[np.ndarray, "pictures dim"]
    captions: Sequence[str]
    pictures: Int32[np.ndarray, " captions"]
    ids: Int32[np.ndarray, " captions"]
    skipped: int
    content: str


def encode_source(
    model: Any, source: Source, *, most: int | None = None, max_bad_share: float = 0.1
) -> EncodedPictures:
    """Encodes the pictures of a source; one that comes several times, with several captions, once.

    Args:
      model: Has ``encode_image``, which takes PIL images.
      source: The samples.
      most: At most so many samples, evenly spaced; None: all.
      max_bad_share: The share that may be unreadable.

    Raises:
      DataError: No picture can be read, or too many cannot.
    """
    chosen = evenly(len(source), len(source) if most is None else most)
    errors, content = DataErrors(), hashlib.blake2b(digest_size=8)
    place: dict[bytes, int] = {}
    rows: list[np.ndarray] = []
    waiting: list[Image.Image] = []
    captions, pictures, features = [], [], []
    for index in chosen.tolist():
        try:
            record = source[index]
            digest = hashlib.blake2b(record["image"], digest_size=16).digest()
            if digest not in place:
                waiting.append(decode_image(record["image"]))
                place[digest] = len(place)
        except SampleError as error:
            errors.add(index, error.key or str(index), error)
            continue
        caption = (record["caption"] or "").strip()
        captions.append(caption)
        pictures.append(place[digest])
        features.append((canonical(caption) or digest, digest))
        content.update(digest + caption.encode("utf-8", "surrogatepass") + b"\0")
        if len(waiting) == CHUNK or sum(x.width * x.height for x in waiting) >= PIXELS:
            rows.append(model.encode_image(waiting))
            waiting = []
    if waiting:
        rows.append(model.encode_image(waiting))
    if not rows or len(errors) > max_bad_share * len(chosen):
        raise DataError(
            f"{len(errors)} of {len(chosen)} pictures cannot be read: {errors.summary()}"
            if len(errors)
            else "there are no pictures to evaluate on."
        )
    return EncodedPictures(
        np.concatenate(rows),
        captions,
        np.array(pictures, np.int32),
        np.array(content_ids(features), np.int32),
        len(errors),
        content.hexdigest(),
    )
