"""Text to token ids, by the Hugging Face ``tokenizers`` library.

Either a ``tokenizer.json`` is given, or a small vocabulary (byte-level BPE, or whole words) is
learned from the training captions, always the same from the same captions, and saved in the run's
folder, where evaluation and search find it. A row of ids is begin token, text, end token, padding;
a text that is too long loses its last tokens, never the end token.
"""

import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tokenizers
from jaxtyping import Float64, Int32
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from contrastive.data.config import DataConfig, TokenizerConfig
from contrastive.data.records import SampleError, Source, TextSource
from contrastive.errors import ConfigError, DataError

_BEGIN = ("<|begin|>", "<|startoftext|>", "[CLS]", "<s>", "<bos>")
_END = ("<|end|>", "<|endoftext|>", "[SEP]", "</s>", "<eos>")
_PAD = ("<|pad|>", "[PAD]", "<pad>")
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
      vocabulary_size: All ids are below it.
      pad_id, begin_id, end_id, unknown_id: The markers; the last three are None where there is no
        such token.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, length: int, config: TokenizerConfig
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.length = length
        self.vocabulary_size = backend.get_vocab_size(with_added_tokens=True)
        self.begin_id = self._find("begin_token", config.begin_token, _BEGIN)
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

    def encode(self, texts: Sequence[str]) -> Int32[np.ndarray, "n length"]:
        """The ids of each text, begin and end tokens and padding included."""
        return self.encode_counted(texts).ids

    def encode_counted(self, texts: Sequence[str]) -> Encoded:
        """Like :meth:`encode`, and counts the texts that were cut."""
        rows = np.full((len(texts), self.length), self.pad_id, np.int32)
        truncated = 0
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        for row, encoding in zip(rows, encodings, strict=True):
            ids = encoding.ids
            if len(ids) > self._room:
                ids = ids[: self._room]
                truncated += 1
            ids = self._head + ids + self._tail
            row[: len(ids)] = ids
        return Encoded(rows, truncated)

    def hide(
        self, ids: Int32[np.ndarray, "n length"], u: Float64[np.ndarray, "n length"], share: float
    ) -> Int32[np.ndarray, "n length"]:
        """Tokens of text, not the markers, become the unknown token where ``u < share``."""
        assert self.unknown_id is not None
        markers = [i for i in (self.pad_id, self.begin_id, self.end_id) if i is not None]
        hidden = (u < share) & ~np.isin(ids, markers)
        return np.where(hidden, np.int32(self.unknown_id), ids)

    def decode(self, ids: Iterable[int | np.integer]) -> str:
        """The text of a row of ids, without markers and padding (for reading by people)."""
        markers = {self.pad_id, self.begin_id, self.end_id}
        return self._backend.decode([int(i) for i in ids if int(i) not in markers]).strip()

    def save(self, path: pathlib.Path) -> None:
        """Writes a ``tokenizer.json``, whole or not at all."""
        temporary = path.with_name(f".{path.name}.new")
        self._backend.save(str(temporary), pretty=False)
        os.replace(temporary, path)


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
    backend.train_from_iterator(sorted(set(texts)), trainer)
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


def read_tokenizer(path: pathlib.Path, *, length: int, config: TokenizerConfig) -> Tokenizer:
    """Reads a ``tokenizer.json``.

    Raises:
      DataError: There is no such file, or it is not a tokenizer.
      ConfigError: A marker that the config names is not in the vocabulary.
    """
    if not path.is_file():
        raise DataError(f"There is no tokenizer file {path}.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path} is not a tokenizer.json: {error}.") from error
    return Tokenizer(backend, length=length, config=config)


def texts(source: Source) -> Iterator[str]:
    """Every caption and keyword of the usable records."""
    for index in range(len(source)):
        try:
            if isinstance(source, TextSource):
                caption, keywords = source.text(index)
            else:
                record = source[index]
                caption, keywords = record["caption"], record["keywords"]
        except SampleError:
            continue
        yield caption
        yield from keywords


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
    settings = config.tokenizer
    saved = None if workdir is None else workdir / "tokenizer.json"
    if saved is not None and saved.exists():
        return read_tokenizer(saved, length=config.text_length, config=settings)
    if settings.path is not None:
        path = pathlib.Path(settings.path).expanduser()
        tokenizer = read_tokenizer(path, length=config.text_length, config=settings)
    elif config.source == "synthetic":
        from contrastive.data.synthetic import synthetic_tokenizer

        tokenizer = synthetic_tokenizer(config)
    elif source is not None:
        tokenizer = train_tokenizer(texts(source), length=config.text_length, config=settings)
    else:
        raise DataError(f"There is no tokenizer in {workdir}, and no captions to learn one from.")
    if saved is not None:
        tokenizer.save(saved)
    return tokenizer
