"""Parquet and Arrow tables, as Hugging Face's data set folders hold them.

All columns but embedded pictures are kept in memory. Arrow files are mapped, any row is near.
Parquet has to decode a whole row group for one picture: the last ones are kept, which suits files
with small row groups; turn large sets into another format once (``contrastive data convert``).
"""

import collections
import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
from jaxtyping import Int64

from contrastive.data import files
from contrastive.data.fields import Fields, parse_json
from contrastive.data.records import DataErrors, Pairs, Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.data.splits import rows_of_split
from contrastive.data.text_fields import TextFields, settle
from contrastive.errors import DataError, NoSuchSplit

_CACHED_BYTES = 256 << 20  # of decoded row groups
_BINARY = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


class TableSource:
    """Records of some rows of tables.

    Args:
      table: The columns in memory, or mapped.
      pictures: Gives the image of a row, where ``table`` has no such column.
      starts: Number of the first row of each file.
      paths: The files.
      rows: Which rows.
      fields: Which column is what.
    """

    def __init__(
        self,
        table: pa.Table,
        pictures: "RowGroups | None",
        starts: Int64[np.ndarray, " files"],
        paths: Sequence[str],
        rows: Int64[np.ndarray, " n"],
        fields: Fields | TextFields,
    ) -> None:
        self._table, self._pictures, self._starts = table, pictures, starts
        self._paths, self._rows, self.fields = paths, rows, fields
        self.errors = DataErrors()
        digest = hashlib.blake2b(rows.tobytes(), digest_size=8)
        for path in paths:
            digest.update(f"{path.rpartition('/')[2]} {files.stamp(path)[0]}".encode())
        self.fingerprint = digest.hexdigest() + fields.fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Record:
        row, path, key = self._row(index)
        if self._pictures is not None:
            try:
                row[self.fields.image] = self._pictures[int(self._rows[index])]
            except (OSError, pa.ArrowException) as error:
                raise SampleError("damaged row group", str(error), key=key) from error
        return self.fields.record(row, base=path, key=key)

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption and keywords of a row without reading its picture."""
        return self.fields.text(self._row(index, text=True)[0])

    def _row(self, index: int, *, text: bool = False) -> tuple[dict[str, Any], str, str]:
        number = int(self._rows[index])
        file = int(np.searchsorted(self._starts, number, side="right")) - 1
        names = self._table.column_names
        if text:
            names = [name for name in names if name in self.fields.words]
        row = {name: _value(self._table.column(name), number) for name in names}
        path = self._paths[file]
        key = f"{path.rpartition('/')[2]} (row {number - int(self._starts[file])})"
        return row, path, key


def _value(column: pa.ChunkedArray, row: int) -> Any:
    try:
        return column[row].as_py()
    except UnicodeDecodeError:  # text columns are not checked when they are written
        return column[row].cast(pa.binary()).as_py()


class RowGroups:
    """One column of Parquet files, by row, with the last row groups kept in memory."""

    def __init__(self, paths: Sequence[str], column: str) -> None:
        self._paths, self._column = paths, column
        counts: list[int] = []
        self._places: list[tuple[int, int]] = []
        for number, path in enumerate(paths):
            about = _parquet(path).metadata
            for group in range(about.num_row_groups):
                counts.append(about.row_group(group).num_rows)
                self._places.append((number, group))
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._cache: collections.OrderedDict[int, pa.ChunkedArray] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, row: int) -> Any:
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._group(group)[row - int(self._starts[group])].as_py()

    def _group(self, group: int) -> pa.ChunkedArray:
        with self._lock:
            if group in self._cache:
                self._cache.move_to_end(group)
                return self._cache[group]
        number, inner = self._places[group]
        table = _parquet(self._paths[number]).read_row_group(inner, columns=[self._column])
        column = table.column(self._column)
        with self._lock:
            self._cache[group] = column
            while (
                len(self._cache) > 1 and sum(c.nbytes for c in self._cache.values()) > _CACHED_BYTES
            ):
                self._cache.popitem(last=False)
        return column


def _parquet(path: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path if not files.is_remote(path) else files.open_binary(path))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}.") from error


def open_table(
    pattern: str, kind: str, split: str, config: FieldsConfig, pairs: Pairs
) -> TableSource:
    """Opens the rows of a split as a kind of pairs.

    Raises:
      DataError: Files, columns or the split are missing, or there is no row.
    """
    where, named = files.of_split(pattern, split)
    paths, named = _paths(where, kind, split, named)
    schema = _parquet(paths[0]).schema_arrow if kind == "parquet" else _arrow(paths[0]).schema
    fields = settle(pairs, config, schema.names, where, _class_names(schema, config))
    wanted = {*fields.columns, config.split}
    columns = [name for name in schema.names if name in wanted]
    embedded = _holds_bytes(schema.field(fields.image).type)
    if kind == "arrow" or not embedded:
        columns.append(fields.image)
    tables = [_read(path, kind, columns) for path in paths]
    counts = [len(table) for table in tables]
    if not columns:  # a table of no columns has no rows
        counts = [_parquet(path).metadata.num_rows for path in paths]
    starts = np.cumsum([0, *counts], dtype=np.int64)
    if not starts[-1]:
        raise DataError(f"{where} holds no rows.")
    table = pa.concat_tables(tables, promote_options="default")
    rows = np.arange(starts[-1], dtype=np.int64)
    if not named:
        captions = [""] * len(rows)
        if fields.caption is not None:
            captions = [_caption(value, fields) for value in table.column(fields.caption)]
        pictures = [None] * len(rows) if embedded else table.column(fields.image).to_pylist()
        splits = table.column(config.split).to_pylist() if config.split in columns else None
        rows = rows_of_split(
            where,
            split,
            named=splits,
            pairs=list(zip(pictures, captions, strict=True)),
            share=config.held_out_share,
            field=f"column {config.split!r}",
            setting="config.data.fields.held_out_share",
        )
    pictures = RowGroups(paths, fields.image) if kind == "parquet" and embedded else None
    return TableSource(table, pictures, starts[:-1], paths, rows, fields)


def _paths(pattern: str, kind: str, split: str, named: bool) -> tuple[list[str], bool]:
    """The files of a split, and whether their names told which they are."""
    suffix = f".{kind}"
    inside = f"{pattern.rstrip('/')}/data"
    paths = files.expand(inside if not named and files.exists(inside) else pattern, (suffix,))
    splits = [files.split_of_name(path) for path in paths]
    if named or None in splits or "train" not in splits:
        return paths, named
    chosen = [path for path, name in zip(paths, splits, strict=True) if name == split]
    if not chosen:
        raise NoSuchSplit(f"{pattern} has no files of the split {split!r}; it has {set(splits)}.")
    return chosen, True


def _arrow(path: str) -> pa.Table:
    try:
        source = files.open_binary(path) if files.is_remote(path) else pa.memory_map(path)
        try:
            return pa.ipc.open_stream(source).read_all()  # as Hugging Face's datasets writes it
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_file(source).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Arrow: {error}.") from error


def _read(path: str, kind: str, columns: list[str]) -> pa.Table:
    try:
        table = _arrow(path) if kind == "arrow" else _parquet(path).read(columns=columns)
        return table.select(columns).replace_schema_metadata(None)
    except (KeyError, pa.ArrowException) as error:
        raise DataError(f"{path} lacks columns that other files have: {error}.") from error


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return any(is_binary(kind) for is_binary in _BINARY)


def _class_names(schema: pa.Schema, config: FieldsConfig) -> list[str] | None:
    """The names of class numbers, as Hugging Face's files carry them."""
    about = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = parse_json(about)["info"]["features"]
        caption = config.caption or next(n for n in ("label", "cls") if n in features)
        return features[caption]["names"]
    except (ValueError, LookupError, TypeError, StopIteration):  # anything may stand there
        return None


def _caption(value: Any, fields: Fields | TextFields) -> str:
    try:
        return fields.text({str(fields.caption): value.as_py()})[0]
    except (SampleError, UnicodeDecodeError):
        return ""
