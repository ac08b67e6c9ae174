"""Text to token ids, by the Hugging Face ``tokenizers`` library.

Either a published model's is taken (:mod:`contrastive.data.vocabulary`), or a ``tokenizer.json`` is
given, or a small vocabulary (byte-level BPE, or whole words) is learned from the training captions,
always the same from the same captions. It is saved in the run's folder, where evaluation and search
find it. A row of ids is begin token, text, end token, padding; a text that is too long loses its
last tokens (or its first, where a ``tokenizer.json`` truncates on the left), never the markers.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Float64, Int32, Int64
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from contrastive.data.broader import with_broader_terms
from contrastive.data.config import DataConfig
from contrastive.data.records import SampleError, Source, words
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.vocabulary import PRESETS, read_vocabulary
from contrastive.errors import ConfigError, DataError
from contrastive.whole import whole_file

_BEGIN = ("<|begin|>", "<|startoftext|>", "[CLS]", "<s>", "<bos>")
_END = ("<|end|>", "<|endoftext|>", "[SEP]", "</s>", "<eos>")
_PAD = ("<|pad|>", "[PAD]", "<pad>")
_LEARNED_FROM = 200_000  # records at most that a vocabulary is learned from
_UNKNOWN = ("<|unknown|>", "[UNK]", "<unk>")
MARKERS = (_PAD[0], _BEGIN[0], _END[0])
"""The markers of a vocabulary that is made here, with ids 0, 1 and 2."""


class Encoded(NamedTuple):
    """Token ids and how many of the texts were cut."""

    ids: Int32[np.ndarray, "n length"]
    truncated: int


class Tokenizer:
    """Texts to rows of exactly ``length`` token ids.

    Attributes:
      length: Ids a text.
      preset: The published model whose form of texts is applied; None: none is.
      broader: Broader terms at most that follow the words of a text, for each entry.
      vocabulary_size: All ids are below it.
      pad_id, begin_id, end_id, unknown_id: The markers; the last three are None where there is no
        such token.
      cuts_left: A long text loses its first tokens instead of its last.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, length: int, config: TokenizerConfig
    ) -> None:
        cut = backend.truncation
        self.cuts_left = cut is not None and str(cut["direction"]).lower() == "left"
        backend.no_padding()
        backend.no_truncation()
        self._backend, self.preset, self.broader = backend, config.preset, config.broader
        if config.broader and not isinstance(backend.model, models.WordLevel):
            raise ConfigError(
                "config.data.tokenizer.broader needs a vocabulary of whole words, and this one "
                "(that of config.init_from?) has none: set config.data.tokenizer.broader = 0."
            )
        self._form = _form(config)
        rules = None if config.preset is None else PRESETS[config.preset]
        if rules is not None:
            begin, end, pad, _ = rules
            config = dataclasses.replace(
                config, preset=None, begin_token=begin, end_token=end, pad_token=pad
            )
        self.length = length
        self.vocabulary_size = backend.get_vocab_size(with_added_tokens=True)
        known = _BEGIN if rules is None else ()  # a preset without a begin token has none
        self.begin_id = self._find("begin_token", config.begin_token, known)
        self.end_id = self._find("end_token", config.end_token, _END)
        self.unknown_id = self._find("", None, _UNKNOWN)
        if config.hidden and self.unknown_id is None:
            raise ConfigError(
                "config.data.tokenizer.hidden needs a tokenizer with an unknown token "
                f"({', '.join(_UNKNOWN)}), like config.data.tokenizer.kind = 'words'."
            )
        pad_id = self._find("pad_token", config.pad_token, _PAD)
        if pad_id is None:
            raise ConfigError(
                "config.data.tokenizer.pad_token has to name the padding token of "
                f"{config.path}: none of {', '.join(_PAD)} is in its vocabulary."
            )
        self.pad_id = pad_id
        self._head = [] if self.begin_id is None else [self.begin_id]
        self._tail = [] if self.end_id is None else [self.end_id]
        self._room = length - len(self._head) - len(self._tail)
        if self._room < 1:
            raise ConfigError(
                f"config.data.text_length = {length} leaves no room for text between the markers."
            )

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """What cuts the texts, without markers and padding; for export."""
        return self._backend

    def _find(self, field: str, name: str | None, known: Sequence[str]) -> int | None:
        if name is None:
            ids = (self._backend.token_to_id(token) for token in known)
            return next((i for i in ids if i is not None), None)
        found = self._backend.token_to_id(name)
        if found is None:
            raise ConfigError(
                f"config.data.tokenizer.{field} = {name!r} is not in the tokenizer's vocabulary."
            )
        return found

    def encode(
        self, texts: Sequence[str], most: int | None = None
    ) -> Int32[np.ndarray, "n length"]:
        """The ids of each text, begin and end tokens and padding included; with ``most``, only so
        many ids of a text are used, the rest is padding."""
        return self.encode_counted(texts, most).ids

    def encode_counted(self, texts: Sequence[str], most: int | None = None) -> Encoded:
        """Like :meth:`encode`, and counts the texts that were cut."""
        rows = np.full((len(texts), self.length), self.pad_id, np.int32)
        truncated, room = 0, self._room - (0 if most is None else self.length - most)
        if room < 1:
            raise ConfigError(
                f"config.data.query_length = {most} leaves no room for text between the markers."
            )
        for row, ids in zip(rows, self._pieces(texts), strict=True):
            if len(ids) > room:
                ids = ids[-room:] if self.cuts_left else ids[:room]
                truncated += 1
            ids = self._head + ids + self._tail
            row[: len(ids)] = ids
        return Encoded(rows, truncated)

    def check_room(self, config: DataConfig) -> None:
        """Raises :class:`ConfigError` where nothing of a text would be read behind what stands
        before it."""
        prefixes = [config.query_prefix.strip(), config.passage_prefix.strip()]
        query, passage = map(len, self._pieces(prefixes, terms=False))
        short = 0 if config.query_length is None else self.length - config.query_length
        rows = [
            ("query_length" if short else "text_length", "query_prefix", query, self._room - short),
            ("text_length", "passage_prefix", passage, self._room),
        ]
        if config.joined:  # both texts in one row, and a marker more
            both = "query_prefix and passage_prefix"
            rows = [("text_length", both, query + passage + 1, self._room - 1)]
        for length, prefix, taken, room in rows:
            if taken >= room:
                raise ConfigError(
                    f"config.data.{length} = {getattr(config, length)} is too little: {room} ids "
                    f"between the markers, behind config.data.{prefix}, leave no room for text."
                )

    def encode_joined(self, firsts: Sequence[str], seconds: Sequence[str]) -> Encoded:
        """Two texts as one row: begin, first, begin, second, end, padding. Where both are too long
        for a row, each may have half of the room; of a text that is too long the end is lost (or
        the beginning, as in :meth:`encode`).

        Raises:
          ConfigError: There is no begin token, which stands between the texts.
        """
        if self.begin_id is None:
            raise ConfigError(
                "config.data.joined needs a tokenizer with a begin token, which stands between the "
                "texts: set config.data.tokenizer.begin_token."
            )
        rows = np.full((len(firsts), self.length), self.pad_id, np.int32)
        truncated, room = 0, self._room - 1
        pieces = zip(self._pieces(firsts), self._pieces(seconds), strict=True)
        for row, both in zip(rows, pieces, strict=True):
            lengths = _shared_room(len(both[0]), len(both[1]), room)
            cut = [
                ids[len(ids) - n :] if self.cuts_left else ids[:n]
                for ids, n in zip(both, lengths, strict=True)
            ]
            truncated += lengths != tuple(map(len, both))
            ids = [self.begin_id, *cut[0], self.begin_id, *cut[1], *self._tail]
            row[: len(ids)] = ids
        return Encoded(rows, truncated)

    def _pieces(self, texts: Sequence[str], *, terms: bool = True) -> list[list[int]]:
        """The ids of texts, without markers; broader terms are left out where they are not asked
        for."""
        form = self._form if terms or not self.broader else _unchanged
        try:
            formed = [form(text) for text in texts]
            found = self._backend.encode_batch_fast(formed, add_special_tokens=False)
        except TypeError as error:
            raise _not_text(texts, error) from error
        return [encoding.ids for encoding in found]

    def hide(
        self, ids: Int32[np.ndarray, "n length"], u: Float64[np.ndarray, "n length"], share: float
    ) -> Int32[np.ndarray, "n length"]:
        """Tokens of text, not the markers, become the unknown token where ``u < share``."""
        assert self.unknown_id is not None
        markers = [i for i in (self.begin_id, self.end_id) if i is not None]
        hidden = (u < share) & ~np.isin(ids, markers)
        hidden &= np.arange(ids.shape[1]) < self.lengths(ids)[:, None]
        return np.where(hidden, np.int32(self.unknown_id), ids)

    def lengths(self, ids: Int32[np.ndarray, "n length"]) -> Int64[np.ndarray, " n"]:
        """How many ids of each row are not padding: those up to the first end token, or without one
        up to the last that is not padding. (The padding's id may be that of a piece, too.)"""
        places = np.arange(1, ids.shape[1] + 1)
        text = np.where(ids != self.pad_id, places, 0).max(axis=1, initial=0)
        if self.end_id is None:
            return text
        ends = ids == self.end_id
        return np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, text)

    def decode(self, ids: Iterable[int | np.integer]) -> str:
        """The text of a row of ids, without markers and padding (for reading by people)."""
        return self._backend.decode(self.without_markers(ids)).strip()

    def pieces(self, ids: Iterable[int | np.integer]) -> list[str]:
        """The tokens of a row of ids as the vocabulary spells them, without padding."""
        return [self._backend.id_to_token(i) or "?" for i in self._text(ids, markers=True)]

    def without_markers(self, ids: Iterable[int | np.integer]) -> list[int]:
        """The ids of the text itself."""
        return self._text(ids, markers=False)

    def _text(self, ids: Iterable[int | np.integer], *, markers: bool) -> list[int]:
        row = [int(i) for i in ids]
        row = row[: int(self.lengths(np.array([row], np.int32))[0])] if row else []
        return row if markers else [i for i in row if i not in (self.begin_id, self.end_id)]

    def save(self, path: pathlib.Path) -> None:
        """Writes a ``tokenizer.json``, whole or not at all."""
        with whole_file(path) as unfinished:
            unfinished.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        """What a ``tokenizer.json`` of it holds."""
        if self.cuts_left:
            self._backend.enable_truncation(self.length, direction="left")
        content = self._backend.to_str()
        self._backend.no_truncation()
        return content


def _form(config: TokenizerConfig) -> Callable[[str], str]:
    """What a text goes through before it is cut."""
    if config.broader:
        return partial(with_broader_terms, most=config.broader)
    return _unchanged if config.preset is None else PRESETS[config.preset].form


def _unchanged(text: str) -> str:
    return text


def _not_text(texts: Sequence[str], error: TypeError) -> Exception:
    """What is wrong with texts that the library refuses: half of a surrogate pair, which no
    encoding of Unicode has."""
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as found:
            return DataError(
                f"the text {text[:60]!a} is no Unicode: character {found.start} is the half "
                f"U+{ord(text[found.start]):04X} of a surrogate pair. Decode it with "
                "errors='replace', or take it out."
            )
    return error


def _shared_room(first: int, second: int, room: int) -> tuple[int, int]:
    """How many of their ids two texts keep."""
    half = room // 2
    if first + second <= room:
        return first, second
    if first <= half:
        return first, room - first
    return (room - second, second) if second <= room - half else (half, room - half)


def train_tokenizer(texts: Iterable[str], *, length: int, config: TokenizerConfig) -> Tokenizer:
    """Learns a vocabulary of the kind that the config names, in lower case.

    Each distinct text counts once. The result depends only on the set of texts.
    """
    backend, trainer = _bpe(config) if config.kind == "bpe" else _words(config)
    # Commas only list words; as tokens of their own they would be the commonest word of all.
    separator = r"\s+" if config.kind == "bpe" else r"[\s,]+"
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(tokenizers.Regex(separator), " "),
            normalizers.Strip(),
        ]
    )  # pyright: ignore[reportAttributeAccessIssue]
    backend.train_from_iterator(sorted(set(map(_form(config), texts))), trainer)
    return Tokenizer(backend, length=length, config=config)


def _bpe(config: TokenizerConfig) -> tuple[tokenizers.Tokenizer, trainers.BpeTrainer]:
    """Pieces that occur at least twice, down to single bytes."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return backend, trainers.BpeTrainer(
        vocab_size=config.vocabulary_size,
        min_frequency=2,
        special_tokens=list(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )


def _words(config: TokenizerConfig) -> tuple[tokenizers.Tokenizer, trainers.WordLevelTrainer]:
    """Whole words and marks; the most frequent, if the vocabulary is too small for all."""
    backend = tokenizers.Tokenizer(models.WordLevel(unk_token=_UNKNOWN[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return backend, trainers.WordLevelTrainer(
        vocab_size=config.vocabulary_size,
        special_tokens=[*MARKERS, _UNKNOWN[0]],
        show_progress=False,
    )


def read_tokenizer(path: pathlib.Path | None, *, length: int, config: TokenizerConfig) -> Tokenizer:
    """Reads the tokenizer of a file; None: that of ``config.preset``.

    Raises:
      DataError: There is no such file, or it is not a tokenizer.
      ConfigError: A marker that the config names is not in the vocabulary.
    """
    return Tokenizer(read_vocabulary(path, config.preset), length=length, config=config)


def texts(source: Source) -> Iterator[str]:
    """Captions and other words of the usable records; of very many, those of evenly spaced ones."""
    count = len(source)
    for index in range(count) if count <= _LEARNED_FROM else _spaced(count):
        try:
            caption, others = words(source, index)
        except SampleError:
            continue
        yield caption
        yield from others


def _spaced(count: int) -> Iterator[int]:
    return (i * count // _LEARNED_FROM for i in range(_LEARNED_FROM))


def load_tokenizer(
    config: DataConfig, source: Source | None = None, workdir: pathlib.Path | None = None
) -> Tokenizer:
    """The tokenizer of a run.

    The ``tokenizer.json`` of the workdir if there is one, else the file that the config names, else
    one learned from the captions of ``source`` (for synthetic data: one made up). What was not yet
    there is saved in the workdir.

    Raises:
      DataError: There is none and no source to learn from, or a file is damaged.
    """
    tokenizer = _tokenizer_of_run(config, source, workdir)
    tokenizer.check_room(config)
    return tokenizer


def _tokenizer_of_run(
    config: DataConfig, source: Source | None, workdir: pathlib.Path | None
) -> Tokenizer:
    settings = config.tokenizer
    saved = None if workdir is None else workdir / "tokenizer.json"
    if saved is not None and saved.exists():
        return read_tokenizer(saved, length=config.text_length, config=settings)
    if settings.path is not None or settings.preset is not None:
        path = None if settings.path is None else pathlib.Path(settings.path).expanduser()
        tokenizer = read_tokenizer(path, length=config.text_length, config=settings)
    elif config.source == "synthetic":
        from contrastive.data.synthetic import synthetic_tokenizer

        tokenizer = synthetic_tokenizer(config)
    elif source is not None:
        prefixes = [p for p in (config.query_prefix, config.passage_prefix) if p]
        tokenizer = train_tokenizer(
            itertools.chain(texts(source), prefixes), length=config.text_length, config=settings
        )
    else:
        raise DataError(f"There is no tokenizer in {workdir}, and no captions to learn one from.")
    if saved is not None:
        tokenizer.save(saved)
    return tokenizer
