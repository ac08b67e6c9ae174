"""Hard negatives as numbers of other samples of the same source: an index that was mined.

Row i belongs to sample i of the training split (the ``example`` of batches), and names samples of
that split whose positives are its negatives: their passages are not written a second time.
"""

import dataclasses
import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64, UInt32

from contrastive.data import files
from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.examples import Examples, Progress, read_examples
from contrastive.data.mixture import Mixture
from contrastive.data.records import Source
from contrastive.errors import DataError, first_line

T = TypeVar("T")
Numbers = Int64[np.ndarray, "samples most"]
"""Numbers of samples; −1 where a sample has fewer negatives than others."""
_NAME = "negatives"  # of the array, the column, the field
_PASSAGES = "passages"  # of the array of checksums, which only `contrastive mine` writes
_log = logging.getLogger(__name__)


def read_examples_with_negatives(
    source: Source, config: DataConfig, *, progress: Progress | None = None, **options: Any
) -> Examples:
    """:func:`contrastive.data.examples.read_examples` of training pairs, with the negatives of
    ``config.fields.negatives_index`` after those that a pair has of its own.

    A number of a sample that cannot be used, or that is equal in content to its own (as every
    sample is to itself), gives no negative; such are counted.

    Raises:
      DataError: As there; or the index cannot be read, has another number of rows than the source
        has samples, names samples that do not exist, was mined from other pairs, or leaves no
        negative at all.
    """
    numbers = _numbers(source, config)  # damaged ones are told before all samples are read
    found = read_examples(source, config, progress=progress, **options)
    if numbers is None:
        return found
    _check_mined_from(found, source, config)
    return _with(found, numbers, len(source))


def passages_of(found: Examples, samples: int) -> UInt32[np.ndarray, " samples"]:
    """A checksum of each sample's positive, by which an index knows the pairs that it was mined
    from; 0 where a sample cannot be used."""
    sums = np.zeros(samples, np.uint32)
    texts = (canonical(text).encode("utf-8", "surrogatepass") for text in found.captions)
    sums[found.index] = [zlib.crc32(text) for text in texts]
    return sums


def _check_mined_from(found: Examples, source: Source, config: DataConfig) -> None:
    """Of an index that says which pairs it was mined from, that it is these."""
    known = [(path, _mined_from(path), start, end) for path, start, end in _indices(source, config)]
    if all(mined is None for _, mined, _, _ in known):
        return  # the checksums take a pass over all texts
    sums = passages_of(found, len(source))
    for path, mined, start, end in known:
        if mined is None:
            continue
        now = sums[start:end]
        same = mined.shape == now.shape and (mined == now) | (mined == 0) | (now == 0)
        if not np.all(same):
            raise DataError(
                f"config.data.fields.negatives_index = {path} was mined from other pairs: sample "
                f"{np.argmin(same)} had another positive. Mine it anew (contrastive mine)."
            )


def _mined_from(path: str | None) -> np.ndarray | None:
    """The checksums in an index; None where it has none."""
    if path is None or not path.lower().endswith(".npz"):
        return None
    with files.open_binary(os.path.expanduser(path)) as file, np.load(file) as arrays:
        return arrays.get(_PASSAGES)


def _indices(source: Source, config: DataConfig) -> Iterator[tuple[str | None, int, int]]:
    """The index of a source and its samples; of a mixture each part has its own, or none."""
    if not isinstance(source, Mixture):
        yield config.fields.negatives_index, 0, len(source)
        return
    for part, start, end in zip(config.mixture, source.starts[:-1], source.starts[1:], strict=True):
        yield part.fields.negatives_index, int(start), int(end)


def _numbers(source: Source, config: DataConfig) -> Numbers | None:
    """Those of all samples of a source."""
    indices = list(_indices(source, config))
    if not any(path for path, _, _ in indices):
        return None
    parts: list[Numbers] = []
    for path, start, end in indices:
        own = np.full((end - start, 0), -1) if path is None else _checked(path, end - start)
        parts.append(np.where(own < 0, -1, own + start))
    most = max(part.shape[1] for part in parts)
    wide = [((0, 0), (0, most - part.shape[1])) for part in parts]
    return np.concatenate(
        [np.pad(part, w, constant_values=-1) for part, w in zip(parts, wide, strict=True)]
    )


def _checked(path: str, samples: int) -> Numbers:
    numbers = read_numbers(path)
    where = f"config.data.fields.negatives_index = {path}"
    if len(numbers) != samples:
        raise DataError(
            f"{where} has {len(numbers):,} rows, and the training split has {samples:,} samples: "
            "there has to be a row for each, in the same order (config.data.fields.held_out_share "
            "leaves samples out)."
        )
    wrong = np.argwhere((numbers < -1) | (numbers >= samples))
    if len(wrong):
        row, place = wrong[0].tolist()
        raise DataError(
            f"{where}, row {row}, names the sample {numbers[row, place]}: samples have the numbers "
            f"0 to {samples - 1}, and -1 stands for none."
        )
    return numbers


def read_numbers(path: str) -> Numbers:
    """The numbers in a file: the array ``negatives`` of an .npz, the column ``negatives`` of a
    .parquet (lists), or in a .jsonl a list, or an object with the list ``negatives``, a line.

    Raises:
      DataError: It cannot be read, or holds something else.
    """
    path = os.path.expanduser(path)
    readers = {".npz": _read_npz, ".parquet": _read_parquet, ".jsonl": _read_jsonl}
    read = readers.get(os.path.splitext(path)[1].lower())
    if read is None:
        raise DataError(
            f"config.data.fields.negatives_index = {path} has to end in {', '.join(readers)}."
        )
    try:
        return read(path)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # the readers raise whatever they like
        raise DataError(
            f"{path} holds no numbers of samples under the name {_NAME!r}, a list a row "
            f"({type(error).__name__}: {first_line(error)})."
        ) from error


def _read_npz(path: str) -> Numbers:
    with files.open_binary(path) as file, np.load(file, allow_pickle=False) as arrays:
        found = arrays[_NAME]
    if found.ndim != 2 or found.dtype.kind not in "iu":
        raise ValueError(f"it is {found.dtype} of shape {found.shape}")
    return found.astype(np.int64)


def _read_parquet(path: str) -> Numbers:
    import pyarrow.parquet as pq

    with files.open_binary(path) as file:
        return _rectangle(pq.read_table(file, columns=[_NAME])[_NAME].to_pylist())


def _read_jsonl(path: str) -> Numbers:
    rows: list[Any] = []
    for line in filter(bytes.strip, files.lines(path)):
        entry = json.loads(line)
        rows.append(entry[_NAME] if isinstance(entry, dict) else entry)
    return _rectangle(rows)


def _rectangle(rows: Sequence[Any]) -> Numbers:
    """Rows of a file, whatever they hold: lists of different lengths are filled up with −1; no
    list at all is an empty one."""
    lists = [np.asarray([] if row is None else row) for row in rows]
    numbers = np.full((len(lists), max(map(len, lists), default=0)), -1, np.int64)
    for to, row in zip(numbers, lists, strict=True):
        if row.ndim != 1 or (len(row) and row.dtype.kind not in "iu"):
            raise ValueError(f"{row.tolist()} is no list of whole numbers")
        to[: len(row)] = row
    return numbers


class _Joined(Sequence[list[T]]):
    """For each example what it has of its own and what others have, looked up when it is asked."""

    def __init__(
        self, own: Sequence[Sequence[T]], numbers: Numbers, of_others: Sequence[T]
    ) -> None:
        self._own, self._numbers, self._others = own, numbers, of_others

    def __len__(self) -> int:
        return len(self._own)

    def __getitem__(self, row: Any, /) -> Any:
        return [*self._own[row], *(self._others[i] for i in self._numbers[row].tolist() if i >= 0)]


def _with(found: Examples, numbers: Numbers, samples: int) -> Examples:
    row_of = np.full(samples + 1, -1, np.int64)  # the last one: of "none"
    row_of[found.index] = np.arange(len(found))
    rows = row_of[numbers[found.index]]
    named = int((numbers[found.index] >= 0).sum())
    unusable = named - int((rows >= 0).sum())
    _, words = np.unique([canonical(text) for text in found.captions], return_inverse=True)
    equal = (found.ids[rows] == found.ids[:, None]) | (words[rows] == words[:, None])
    equal &= rows >= 0
    rows[equal] = -1
    left = int((rows >= 0).sum())
    if not left:
        raise DataError(
            f"config.data.fields.negatives_index names {named:,} samples, of which none is a "
            f"negative: {unusable:,} cannot be used, {int(equal.sum()):,} are equal in content to "
            "the pair that they are to be negatives of."
        )
    if left < named:
        _log.warning(
            "Of the %s samples that config.data.fields.negatives_index names, %s cannot be used "
            "and %s are equal in content to the pair itself: they are no negatives.",
            f"{named:,}",
            f"{unusable:,}",
            f"{int(equal.sum()):,}",
        )
    digest = hashlib.blake2b(rows.tobytes(), digest_size=8).hexdigest()
    return dataclasses.replace(
        found,
        negatives=_Joined(found.negatives, rows, found.captions),
        negative_ids=_Joined(found.negative_ids, rows, found.ids.tolist()),
        fingerprint=found.fingerprint + digest,
    )
