"""JSON Lines: one object a line, read at random places through the lines' offsets."""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Int64

from contrastive.data import files
from contrastive.data.fields import Fields, parse_json
from contrastive.data.records import DataErrors, Pairs, Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.data.splits import rows_of_split
from contrastive.data.text_fields import TextFields, settle
from contrastive.errors import DataError

_LOOKED_AT = 1000  # lines that are looked at to see which fields there are


class JsonlSource:
    """Records of some lines of JSON Lines files.

    Args:
      paths: The files.
      places: File, offset and length in bytes of each line.
      numbers: Number of each line in its file, from 1.
      fields: Which field is what.
    """

    def __init__(
        self,
        paths: list[str],
        places: Int64[np.ndarray, "n 3"],
        numbers: Int64[np.ndarray, " n"],
        fields: Fields | TextFields,
    ) -> None:
        self._paths, self._places, self._numbers, self.fields = paths, places, numbers, fields
        self.errors = DataErrors()
        lines = hashlib.blake2b(places.tobytes(), digest_size=8).hexdigest()
        self.fingerprint = lines + fields.fingerprint

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int, /) -> Record:
        row, path, key = self._row(index)
        return self.fields.record(row, base=path, key=key)

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption and keywords of a line without reading its picture."""
        return self.fields.text(self._row(index)[0])

    def _row(self, index: int) -> tuple[dict[str, Any], str, str]:
        file, offset, size = self._places[index].tolist()
        path = self._paths[file]
        key = f"{path.rpartition('/')[2]} (line {self._numbers[index]})"
        try:
            return parse_line(files.read_at(path, offset, size)), path, key
        except OSError as error:
            raise SampleError("unreadable file", str(error), key=key) from error
        except ValueError as error:
            raise SampleError("line is not a JSON object", str(error), key=key) from error


def parse_line(data: bytes) -> dict[str, Any]:
    """The object of a line; text that is no UTF-8 keeps its bytes as lone surrogates.

    Raises:
      ValueError: It is not a JSON object.
    """
    value = parse_json(data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape"))
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    return value


def open_jsonl(pattern: str, split: str, config: FieldsConfig, pairs: Pairs) -> JsonlSource:
    """Opens the lines of a split as a kind of pairs.

    Raises:
      DataError: Files, fields or the split are missing, or there is no line.
    """
    pattern, named = files.of_split(pattern, split)
    paths = files.expand(pattern, (".jsonl", ".ndjson"))
    places: list[tuple[int, int, int]] = []
    numbers: list[int] = []
    rows: list[tuple[str | None, object, str]] = []
    fields = _settle(pattern, paths, config, pairs)
    for file, path in enumerate(paths):
        for number, offset, line in _lines(path):
            places.append((file, offset, len(line)))
            numbers.append(number)
            try:
                row = parse_line(line)
            except ValueError:
                rows.append((None, None, ""))  # is named and counted when it is read
                continue
            rows.append((None, None, "") if named else _about(row, path, fields))
    chosen: slice | np.ndarray = slice(None)
    if not named:
        has_splits = config.split in fields.found
        chosen = rows_of_split(
            pattern,
            split,
            named=[name for name, _, _ in rows] if has_splits else None,
            pairs=[(picture, caption) for _, picture, caption in rows],
            share=config.held_out_share,
            field=f"field {config.split!r}",
            setting="config.data.fields.held_out_share",
        )
    table = np.array(places, np.int64).reshape(-1, 3)
    return JsonlSource(paths, table[chosen], np.array(numbers, np.int64)[chosen], fields)


def _settle(
    pattern: str, paths: list[str], config: FieldsConfig, pairs: Pairs
) -> Fields | TextFields:
    """Which field is which, by what the first lines have."""
    lines = (line for path in paths for _, _, line in _lines(path))
    looked_at, found = 0, dict[str, None]()
    for line in itertools.islice(lines, _LOOKED_AT):
        looked_at += 1
        with contextlib.suppress(ValueError):
            found |= dict.fromkeys(parse_line(line))
    if not looked_at:
        raise DataError(f"{pattern} holds no lines.")
    if not found:
        raise DataError(f"{pattern} is not JSON Lines: no line is an object in braces.")
    return settle(pairs, config, found, pattern)


def _lines(path: str) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line that is not blank."""
    offset = 0
    try:
        for number, line in enumerate(files.lines(path), 1):
            if line.strip():
                yield number, offset, line
            offset += len(line)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _about(
    row: dict[str, Any], path: str, fields: Fields | TextFields
) -> tuple[str | None, object, str]:
    """Split, picture (query) and caption (positive) of a line."""
    try:
        caption = fields.text(row)[0]
    except SampleError:
        caption = ""
    split = row.get(fields.config.split)
    return None if split is None else str(split), fields.first(row, path), caption
