"""TFRecord files by number, without TensorFlow.

A file is a row of records: length (8 bytes, little endian), a check sum of it (4), the payload, a
check sum of that (4); https://www.tensorflow.org/tutorials/load_data/tfrecord. Their places are
found once, when the files are opened, by going from length to length, 8 bytes of memory a record.
Check sums are not compared: a damaged payload is noticed when it is parsed.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from contrastive.data import files

_HEAD, _TAIL = 12, 4  # bytes before and after a payload


class Shard(NamedTuple):
    """Records of one file: ``take`` of them (None: all) after the first ``skip``."""

    path: str
    skip: int = 0
    take: int | None = None


class TFRecords:
    """The payloads of TFRecord files, one after another.

    Args:
      shards: The files, in order.

    Attributes:
      cut_short: The files that end in the middle of a record, which is left out.

    Raises:
      OSError: A file cannot be read.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._paths = [shard.path for shard in shards]
        self.cut_short: list[str] = []
        places = [self._places(shard) for shard in shards]
        self._begins = np.cumsum([0, *(len(found) - 1 for found in places)])
        self._places_of = places

    def _places(self, shard: Shard) -> np.ndarray:
        """Where the records of a file begin, and where the last one ends."""
        size = files.stamp(shard.path)[0]
        places, place = [0], 0
        with files.open_binary(shard.path) as file:
            while place < size:
                head = file.read(_HEAD)
                length = struct.unpack("<Q", head[:8])[0] if len(head) == _HEAD else size
                place += _HEAD + length + _TAIL
                if place > size:
                    self.cut_short.append(shard.path)
                    break
                places.append(place)
                file.seek(place)
        stop = None if shard.take is None else shard.skip + shard.take + 1
        return np.array(places[shard.skip : stop] or [0], np.int64)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def __getitem__(self, index: int, /) -> bytes:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._begins, index, side="right")) - 1
        within = index - self._begins[number]
        begin, end = (int(place) for place in self._places_of[number][within : within + 2])
        return files.read_at(self._paths[number], begin + _HEAD, end - begin - _HEAD - _TAIL)
