"""From the named values of a sample, whatever the format, to a record.

A value is what the format holds: encoded bytes, a path, a text, a number, a list of them, or the
``{"bytes": ..., "path": ...}`` of Hugging Face's image columns. One set of rules for all readers:
text that is no UTF-8 is skipped or replaced as ``undecodable`` says, a byte-order mark is dropped,
a missing or null caption is an empty one, of a list of captions the first counts.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contrastive.data import files
from contrastive.data.records import Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.errors import DataError

# The usual names, in the order in which they are looked for.
IMAGE_NAMES = (
    "image",
    "img",
    "jpg",
    "jpeg",
    "png",
    "webp",
    "gif",
    "bmp",
    "tif",
    "tiff",
    "file_name",
)
CAPTION_NAMES = ("caption", "captions", "text", "txt", "title", "label", "cls")
KEYWORD_NAMES = ("keywords", "tags")
ID_NAMES = ("content_id",)
KEY_NAMES = ("key", "__key__")
JSON = "json."  # before the name of a value in a sample's JSON member


class NamedFields:
    """Which field of a source is which, settled once: those that the config names, else usual ones.

    Args:
      config: The names that are set.
      found: The fields that the source has, for names that are not set and for messages.
      where: How messages call the source.

    Attributes:
      key: The field of what a sample is called, if there is one; subclasses set it.
    """

    key: str | None

    def __init__(self, config: FieldsConfig, found: Iterable[str], where: str) -> None:
        self.config, self.where, self.found = config, where, list(found)

    def _name(self, field: str, name: str | None, usual: Sequence[str]) -> str:
        found = self._optional(field, name, usual)
        if found is None:
            raise DataError(
                f"{self.where} has no field for the {field}: looked for {', '.join(usual)}; its "
                f"fields are {self._listed()}. Set config.data.fields.{field} to the name of yours."
            )
        return found

    def _optional(self, field: str, name: str | None, usual: Sequence[str]) -> str | None:
        if name is None:
            return next((n for n in self._spellings(usual) if n in self.found), None)
        if name not in self.found:
            raise DataError(
                f"{self.where} has no field {name!r} (config.data.fields.{field}); its fields are "
                f"{self._listed()}."
            )
        return name

    def _spellings(self, usual: Sequence[str]) -> Sequence[str]:
        return usual

    def _listed(self) -> str:
        return ", ".join(map(repr, self.found[:20]))

    def name(self, row: Mapping[str, Any], key: str) -> str:
        """What the sample is called: its key field, else ``key``."""
        given = None if self.key is None else row.get(self.key)
        return key if given is None else plain(given)


class Fields(NamedFields):
    """The fields of pictures, with captions or alone.

    Args:
      config: The names that are set.
      found: The fields that the source has, for names that are not set and for messages.
      where: How messages call the source.
      classes: Names of class numbers, where the format itself knows them.
      captions: Whether samples need captions; else only pictures and keys are read.

    Attributes:
      columns: The fields of a record, without the image.
      words: Those that :meth:`text` reads.
      fingerprint: Of what is read beside the source: nothing.

    Raises:
      DataError: There is no field for the image or the caption; the fields that exist are named.
    """

    fingerprint = ""

    def __init__(
        self,
        config: FieldsConfig,
        found: Iterable[str],
        where: str,
        classes: Sequence[str] | None = None,
        *,
        captions: bool = True,
    ) -> None:
        super().__init__(config, found, where)
        self.image = self._name("image", config.image, IMAGE_NAMES)
        self.caption = self.keywords = None
        if captions:
            self.caption = self._name("caption", config.caption, CAPTION_NAMES)
            self.keywords = self._optional("keywords", config.keywords, KEYWORD_NAMES)
        self.id = self._optional("id", config.id, ID_NAMES)
        self.key = self._optional("key", config.key, KEY_NAMES)
        self.words = {name for name in (self.caption, self.keywords) if name is not None}
        self.columns = self.words | {name for name in (self.id, self.key) if name is not None}
        self.classes = classes if config.class_names is None else _read_classes(config.class_names)

    def _spellings(self, usual: Sequence[str]) -> Sequence[str]:
        return usual_names(usual)

    def record(self, row: Mapping[str, Any], *, base: str, key: str) -> Record:
        """The record of a sample.

        Raises:
          SampleError: Its image is missing or unreadable, or its text is not UTF-8.
        """
        key = self.name(row, key)
        try:
            caption, keywords = self.text(row)
            return Record(
                image=encoded(row.get(self.image), base),
                caption=caption,
                keywords=keywords,
                id=self._id(row),
                key=key,
            )
        except SampleError as error:
            raise SampleError(error.reason, error.detail, key=key) from error

    def first(self, row: Mapping[str, Any], base: str) -> object:
        """What tells the picture of a sample from others without reading it: its path, or None."""
        picture = row.get(self.image)
        return files.beside(base, picture) if isinstance(picture, str) else None

    def text(self, row: Mapping[str, Any]) -> tuple[str, list[str]]:
        """Caption and keywords of a sample.

        Raises:
          SampleError: The text is not UTF-8, or a class number has no name.
        """
        captions = [] if self.caption is None else self._texts(row.get(self.caption))
        words = None if self.keywords is None else row.get(self.keywords)
        if isinstance(words, str | bytes):
            words = self._clean(words).split(self.config.keywords_separator)
        keywords = [word.strip() for word in self._texts(words)]
        return next(filter(None, captions), ""), [word for word in keywords if word]

    def _texts(self, value: Any) -> list[str]:
        if value is None:
            return []
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, list | tuple):
            return [text for one in value for text in self._texts(one)]
        if isinstance(value, dict):
            return [text for one in value.values() for text in self._texts(one)]
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return [self._class(int(value))]
        text = self._clean(value).strip()
        numbered = self.classes is not None or self.caption == "cls"
        return [self._class(int(text)) if numbered and text.isdecimal() else text]

    def _class(self, number: int) -> str:
        if self.classes is None:
            raise SampleError(
                "class without a name", "set config.data.fields.class_names to a file of names"
            )
        if not 0 <= number < len(self.classes):
            raise SampleError("class without a name", f"number {number} of {len(self.classes)}")
        return self.classes[number]

    def _clean(self, value: Any) -> str:
        return decode_text(value, self.config.undecodable)

    def _id(self, row: Mapping[str, Any]) -> int:
        value = None if self.id is None else row.get(self.id)
        if value is None:
            return -1
        try:
            number = int(value)
        except (TypeError, ValueError) as error:
            raise SampleError("id is not a whole number", repr(value)[:40]) from error
        if not -1 <= number < 2**31:
            raise SampleError("id is not between 0 and 2^31 - 1", str(number))
        return number


def usual_names(names: Sequence[str]) -> list[str]:
    """The usual names of a field, and the same in a JSON member."""
    return [*names, *(JSON + name for name in names)]


def decode_text(value: Any, undecodable: str) -> str:
    """A text from bytes or a text, without a byte-order mark.

    Raises:
      SampleError: The bytes are not UTF-8 and are to be skipped.
    """
    if not isinstance(value, bytes):
        text = str(value)
        if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
            try:  # bytes that were no UTF-8, or half of a pair, which JSON can hold
                value = text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                value = text.encode("utf-8", "surrogatepass")
        else:
            return text.removeprefix("\ufeff")
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        if undecodable == "skip":
            raise SampleError("text is not utf-8") from error
        text = value.decode("utf-8", "replace")
    return text.removeprefix("\ufeff")


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds.

    Raises:
      ValueError: It is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def encoded(value: Any, base: str) -> bytes:
    """The encoded picture that a value holds or names (relative to the folder of ``base``).

    Raises:
      SampleError: There is none, or its file cannot be read.
    """
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes | bytearray | memoryview):
        if not len(value):
            raise SampleError("missing image", "it has no bytes")
        return bytes(value)
    if value is None or value == "":
        raise SampleError("missing image", "the field is empty")
    if not isinstance(value, str):
        raise SampleError("image is neither bytes nor a path", type(value).__name__)
    try:
        return files.read_bytes(files.beside(base, value))
    except FileNotFoundError as error:
        raise SampleError("missing image", f"there is no file {value}") from error
    except (OSError, ValueError) as error:
        raise SampleError("unreadable image file", str(error)) from error


def plain(value: Any) -> str:
    """A value as a text for messages."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _read_classes(path: str) -> list[str]:
    try:
        text = files.read_bytes(os.path.expanduser(path)).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"config.data.fields.class_names = {path}: {error}.") from error
    return [line.strip() for line in text.splitlines() if line.strip()]
