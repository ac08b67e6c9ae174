"""Pairs of texts, with texts that do not belong to them, from the named values of a sample.

A text is a string, a list of strings (of a positive the first counts), or an object with ``text``
and perhaps ``title``, which stands before it, as retrieval sets write passages.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contrastive.data import files
from contrastive.data.captions import canonical
from contrastive.data.fields import Fields, NamedFields, decode_text, parse_json, plain
from contrastive.data.records import Pairs, Record, SampleError
from contrastive.data.source_config import FieldsConfig
from contrastive.errors import DataError

# The usual names, in the order in which they are looked for.
QUERY_NAMES = ("query", "question", "anchor", "sentence1", "premise")
POSITIVE_NAMES = (
    "positive",
    "positives",
    "pos",
    "positive_passages",
    "positive_ctxs",
    "answer",
    "passage",
    "document",
    "sentence2",
    "hypothesis",
)
NEGATIVE_NAMES = (
    "negatives",
    "negative",
    "neg",
    "negative_passages",
    "hard_negative_ctxs",
    "hard_negatives",
)
KEY_NAMES = ("key", "id", "_id", "query_id", "qid")
LABEL_NAMES = ("label", "gold_label", "relation")
_DEEPEST = 20  # lists in lists, objects in objects
_NUMBERED = re.compile(r"(hard_)?negative_?\d+")


class TextFields(NamedFields):
    """The fields of pairs of texts.

    Args:
      config: The names that are set, and the file with more negatives.
      found: The fields that the source has.
      where: How messages call the source.

    Attributes:
      image, caption: The fields of the query and of the positive: the two halves.
      negatives: Those of the negatives; several where each has one (``negative_1``, …).
      label: That of the label; None where pairs have none.
      columns: The fields of a record, without the query's.
      words: Those that :meth:`text` reads.
      fingerprint: A digest of the file with more negatives, if there is one.

    Raises:
      DataError: There is no field for the query, the positive or a label that is asked for, or the
        file with more negatives cannot be read.
    """

    def __init__(self, config: FieldsConfig, found: Iterable[str], where: str) -> None:
        super().__init__(config, found, where)
        self.image = self._name("query", config.query, QUERY_NAMES)
        self.caption = self._name("positive", config.positive, POSITIVE_NAMES)
        usual = self._optional("negatives", config.negatives, NEGATIVE_NAMES)
        numbered = [name for name in self.found if _NUMBERED.fullmatch(name)]
        self.negatives = numbered if usual is None else [usual]
        self.keywords = None
        self.id = self._optional("id", config.id, ("content_id",))
        self.key = self._optional("key", config.key, KEY_NAMES)
        self.label = self._name("label", config.label, LABEL_NAMES) if config.labels else None
        self.words = {self.image, self.caption, *self.negatives}
        self.columns = {self.caption, *self.negatives}
        self.columns |= {name for name in (self.id, self.key, self.label) if name is not None}
        self._more = _read_negatives(config)
        self.fingerprint = ""
        if self._more:
            more = json.dumps(self._more, sort_keys=True).encode()
            self.fingerprint = hashlib.blake2b(more, digest_size=8).hexdigest()
        if self._more and self.key is None:
            raise DataError(
                f"{where} has no field for the key of a sample, by which "
                f"config.data.fields.negatives_file = {config.negatives_file} finds its negatives; "
                f"its fields are {self._listed()}. Set config.data.fields.key."
            )

    @property
    def brings_negatives(self) -> bool:
        """Whether there is a field or a file that may hold some."""
        return bool(self.negatives or self._more)

    def record(self, row: Mapping[str, Any], *, base: str, key: str) -> Record:
        """The record of a sample; ``base`` is not needed.

        Raises:
          SampleError: A text is not UTF-8 or no text at all, the id is no number, or the label is
            not one of those that are named.
        """
        key = self.name(row, key)
        try:
            positive, _ = self.text(row)
            record = Record(
                image=b"",
                caption=positive,
                keywords=[],
                id=self._id(row),
                key=key,
                query=next(iter(self._texts(row.get(self.image))), ""),
                negatives=self._negatives(row),
            )
            if self.label is not None:
                record["label"] = self._label(row.get(self.label))
            return record
        except SampleError as error:
            raise SampleError(error.reason, error.detail, key=key) from error

    def first(self, row: Mapping[str, Any], base: str) -> object:
        """What tells queries from one another."""
        value = row.get(self.image)
        return canonical(value) if isinstance(value, str) else None

    def text(self, row: Mapping[str, Any]) -> tuple[str, list[str]]:
        """The positive, and the other texts of the sample.

        Raises:
          SampleError: A text is not UTF-8, or no text at all.
        """
        positives = self._texts(row.get(self.caption))
        others = [*self._texts(row.get(self.image)), *self._negatives(row)]
        return next(iter(positives), ""), others

    def _negatives(self, row: Mapping[str, Any]) -> list[str]:
        found = [text for name in self.negatives for text in self._list(row.get(name))]
        if self.key is not None and (given := row.get(self.key)) is not None:
            found += self._more.get(plain(given), ())
        return list(dict.fromkeys(found))

    def _list(self, value: Any) -> list[str]:
        """Negatives in one value; a text may hold several: a JSON list, or with separators."""
        if isinstance(value, str | bytes):
            text = decode_text(value, self.config.undecodable)
            if text.lstrip().startswith("["):
                try:
                    return self._texts(parse_json(text))
                except ValueError:
                    pass
            if self.config.negatives_separator is not None:
                return self._texts(text.split(self.config.negatives_separator))
        return self._texts(value)

    def _texts(self, value: Any, depth: int = 0) -> list[str]:
        if depth > _DEEPEST:
            raise SampleError("value is nested too deeply")
        if value is None:
            return []
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, list | tuple):
            return [text for one in value for text in self._texts(one, depth + 1)]
        if isinstance(value, Mapping):
            if "text" not in value:
                raise SampleError("object without a text", f"it has {', '.join(value)}")
            parts = (value.get("title"), value["text"])
            return self._texts(" ".join(t for p in parts for t in self._texts(p, depth + 1)))
        if not isinstance(value, str | bytes):
            raise SampleError("value is not a text", repr(value)[:40])
        text = decode_text(value, self.config.undecodable).strip()
        return [text] if text else []

    def _label(self, value: Any) -> int:
        """The number of a label, by its name or number."""
        names, given = self.config.labels, plain(_number(value)).strip()
        for known in (names, [str(i) for i in range(len(names))]):
            if given in known:
                return known.index(given)
        raise SampleError("unknown label", repr(given)[:40])

    def _id(self, row: Mapping[str, Any]) -> int:
        value = None if self.id is None else _number(row.get(self.id))
        if value is None or value == "":
            return -1
        if not isinstance(value, int) or not -1 <= value < 2**31:
            raise SampleError("id is not a number between 0 and 2^31 - 1", repr(value)[:40])
        return value


def _number(value: Any) -> Any:
    """A whole number as such, where a table holds it as text or, beside empty cells, as float."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        return int(value) if value.isdecimal() and len(value) < 12 else value.strip()
    return value


def settle(
    pairs: Pairs,
    config: FieldsConfig,
    found: Iterable[str],
    where: str,
    classes: Sequence[str] | None = None,
) -> Fields | TextFields:
    """The fields of a source for a kind of pairs; arguments of :class:`Fields`."""
    if pairs == "texts":
        return TextFields(config, found, where)
    return Fields(config, found, where, classes, captions=pairs == "captions")


def _read_negatives(config: FieldsConfig) -> dict[str, tuple[str, ...]]:
    """Negatives of samples by their key."""
    if config.negatives_file is None:
        return {}
    path = os.path.expanduser(config.negatives_file)
    more: dict[str, tuple[str, ...]] = {}
    number = 0
    try:
        for line in files.lines(path):
            number += 1
            if not line.strip():
                continue
            entry = parse_json(line.decode("utf-8-sig"))
            key, texts = str(entry["key"]), entry["negatives"]
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise TypeError("negatives are texts in a list")
            texts = [decode_text(text, config.undecodable).strip() for text in texts]
            more[key] = (*more.get(key, ()), *filter(None, texts))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, SampleError) as error:
        raise DataError(
            f"{path}, line {number}: every line has to be an object with a key and negatives, a "
            f"list of texts ({type(error).__name__}: {error})."
        ) from error
    if not more:
        raise DataError(f"{path} holds no negatives.")
    return more
