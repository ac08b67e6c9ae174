"""Your own pairs: a CSV or TSV file with an image path and a caption, or two texts, a row.

Image paths are relative to the file's folder. The file is read as ``encoding`` (a byte-order mark
is dropped); a row whose text is not valid in it is skipped and counted, or gets replacement
characters, as ``undecodable`` says. Paths keep their bytes whatever they are.
"""

import csv
import dataclasses
import io
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from contrastive.data.records import Record, SampleError
from contrastive.data.source_config import CsvConfig, FieldsConfig
from contrastive.data.text_fields import TextFields
from contrastive.errors import DataError

_FIELD_LIMIT = 1 << 24  # characters in one cell


class _BadRow(Exception):
    """The text is not a table from here on."""


class Row(NamedTuple):
    """The cells of one row that matter, undecodable bytes as lone surrogates."""

    line: int
    image: str
    caption: str
    keywords: tuple[str, ...]
    split: str | None
    fault: str | None  # why the row cannot be used, if it cannot


class CsvSource:
    """Records of the rows of one file."""

    def __init__(self, folder: pathlib.Path, rows: Sequence[Row], config: CsvConfig) -> None:
        self._folder, self._rows, self._config = folder, rows, config

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Record:
        row = self._rows[index]
        key = f"{row.image} (line {row.line})"
        if row.fault is not None:
            raise SampleError(row.fault, key=key)
        caption, keywords = self.text(index)
        return Record(
            image=self._read(row.image, key), caption=caption, keywords=keywords, id=-1, key=key
        )

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """Caption and keywords of a row without reading its picture."""
        row = self._rows[index]
        cells = [self._clean(cell, row) for cell in (row.caption, *row.keywords)]
        return cells[0], [cell for cell in cells[1:] if cell]

    def _clean(self, cell: str, row: Row) -> str:
        if cell.isascii():
            return cell.strip()
        clean = cell.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if clean != cell and self._config.undecodable == "skip":
            raise SampleError(
                f"text is not {self._config.encoding}", key=f"{row.image} (line {row.line})"
            )
        return clean.strip()

    def _read(self, image: str, key: str) -> bytes:
        if not image:
            raise SampleError("missing image", "the cell is empty", key=key)
        path = os.path.join(os.fsencode(self._folder), os.fsencode(image))
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError as error:
            raise SampleError("missing image", "there is no such file", key=key) from error
        except (OSError, ValueError) as error:
            raise SampleError("unreadable image file", str(error), key=key) from error


class TextRow(NamedTuple):
    """A row of a pair of texts, undecodable bytes as lone surrogates."""

    line: int
    cells: dict[str, str]
    split: str | None
    fault: str | None  # why the row cannot be used, if it cannot


class CsvTextSource:
    """Pairs of texts of the rows of one file.

    Args:
      name: What messages call the file.
      rows: The rows.
      fields: Which column is what.
    """

    def __init__(self, name: str, rows: Sequence[TextRow], fields: TextFields) -> None:
        self._name, self._rows, self.fields = name, rows, fields

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int, /) -> Record:
        row = self._rows[index]
        key = f"{self._name} (line {row.line})"
        if row.fault is not None:
            raise SampleError(row.fault, key=key)
        return self.fields.record(row.cells, base="", key=key)

    def text(self, index: int, /) -> tuple[str, list[str]]:
        """The positive and the other texts of a row."""
        return self.fields.text(self._rows[index].cells)


def read_csv(
    path: pathlib.Path, config: CsvConfig, *, tabs: bool, captions: bool = True
) -> list[Row]:
    """Reads the rows of a CSV or TSV file with image paths.

    Args:
      path: The file.
      config: Its columns, and how it is written.
      tabs: Whether tabs separate cells by default.
      captions: Whether there has to be a caption; else none is read.

    Raises:
      DataError: There is no such file, it is empty, has no rows, lacks a column (the columns that
        it has are named), or cannot be parsed.
    """
    return _parse(path, config, tabs, lambda reader: _rows(path, reader, config, captions))


def read_text_csv(
    path: pathlib.Path, config: CsvConfig, fields: FieldsConfig, *, tabs: bool
) -> tuple[list[TextRow], TextFields]:
    """Reads the rows of a CSV or TSV file with texts, and settles which column is what.

    Raises:
      DataError: There is no such file, it is empty, has no rows, lacks a column (the columns that
        it has are named), or cannot be parsed.
    """
    fields = dataclasses.replace(fields, undecodable=config.undecodable)
    found: list[TextFields] = []

    def rows(reader: Iterator[list[str]]) -> Iterator[TextRow]:
        for header, line, cells, fault in _cells(path, reader):
            if not found:
                found.append(TextFields(fields, header, str(path)))
            named = _named(header, cells)
            split = named.get(config.split)
            yield TextRow(line, named, None if split is None else split.strip(), fault)

    return _parse(path, config, tabs, rows), found[0]


_AnyRow = TypeVar("_AnyRow", Row, TextRow)


def _parse(
    path: pathlib.Path,
    config: CsvConfig,
    tabs: bool,
    rows: Callable[[Iterator[list[str]]], Iterator[_AnyRow]],
) -> list[_AnyRow]:
    text = _read_text(path, config)
    delimiter = config.delimiter or ("\t" if tabs else ",")
    old_limit = csv.field_size_limit(_FIELD_LIMIT)
    try:
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=delimiter,
            strict=True,
            quoting=csv.QUOTE_MINIMAL if config.quoted else csv.QUOTE_NONE,
        )
        return list(rows(reader))
    except _BadRow as error:
        hint = " If quotes are plain characters in it, set config.data.csv.quoted=False."
        raise DataError(
            f"{path} cannot be read as a table: {error}.{hint if config.quoted else ''}"
        ) from error
    finally:
        csv.field_size_limit(old_limit)


def _read_text(path: pathlib.Path, config: CsvConfig) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(
            f"There is no file {path}. config.data.source is 'emoji' or the path of a CSV or TSV "
            f"file with the columns {config.image!r} and {config.caption!r}."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if not data.strip():
        raise DataError(
            f"{path} is empty; it needs a header line with the columns {config.image!r} and "
            f"{config.caption!r}, and a row for each pair."
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") and "16" not in config.encoding:
        raise DataError(f"{path} is a UTF-16 file; set config.data.csv.encoding=utf-16.")
    utf8 = config.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    try:
        return data.decode("utf-8-sig" if utf8 else config.encoding, "surrogateescape")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text in {config.encoding}: {error.reason}.") from error


def _rows(
    path: pathlib.Path, reader: Iterator[list[str]], config: CsvConfig, captions: bool
) -> Iterator[Row]:
    needed = (config.image, config.caption) if captions else (config.image,)
    for header, line, cells, fault in _cells(path, reader, needed, config):
        named = _named(header, cells)
        keywords, split = (named.get(name) for name in (config.keywords, config.split))
        yield Row(
            line=line,
            image=named[config.image].strip(),
            caption=named[config.caption] if captions else "",
            keywords=tuple(keywords.split(config.keywords_separator))
            if keywords and captions
            else (),
            split=None if split is None else split.strip(),
            fault=fault,
        )


def _named(header: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Cells by column; of columns with one name the first counts."""
    return dict(reversed(list(zip(header, cells, strict=False))))


def _cells(
    path: pathlib.Path,
    reader: Iterator[list[str]],
    needed: Sequence[str] = (),
    config: CsvConfig | None = None,
) -> Iterator[tuple[list[str], int, list[str], str | None]]:
    """Header, line, cells and fault of each row that is not blank."""
    header = [name.strip() for name in _next_row(reader) or []]
    for column in needed:
        if column not in header:
            assert config is not None
            raise DataError(_missing_column(path, column, header, config))
    count = 0
    while (cells := _next_row(reader)) is not None:
        if not any(cell.strip() for cell in cells):
            continue
        count += 1
        fault = "more cells than columns" if len(cells) > len(header) else None
        cells = cells + [""] * (len(header) - len(cells))
        yield header, reader.line_num, cells, fault  # pyright: ignore[reportAttributeAccessIssue]
    if not count:
        raise DataError(f"{path} has a header line but no rows.")


def _next_row(reader: Iterator[list[str]]) -> list[str] | None:
    begin = reader.line_num + 1  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return next(reader, None)
    except csv.Error as error:
        raise _BadRow(f"the row that begins in line {begin} is malformed ({error})") from error


def _missing_column(path: pathlib.Path, column: str, header: list[str], config: CsvConfig) -> str:
    found = ", ".join(repr(name.encode("utf-8", "replace").decode()) for name in header[:20])
    field = "image" if column == config.image else "caption"
    message = (
        f"{path} has no column {column!r}; its columns are {found}. Rename one, or set "
        f"config.data.csv.{field} to the name of yours."
    )
    other = next((d for d in ";\t,|" if len(header) == 1 and d in header[0]), None)
    if other:
        message += f" If cells are separated by {other!r}, set config.data.csv.delimiter."
    return message
