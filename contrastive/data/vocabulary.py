"""Tokenizers of published models, from the files that they are published in.

All become one kind of object of the Hugging Face ``tokenizers`` library: byte-pair merges in CLIP's
form, WordPiece lists in BERT's, SentencePiece models (unigram or byte pairs), ``tokenizer.json``.
CLIP's merges and BERT's uncased list come with this package.
"""

import gzip
import importlib.resources
import pathlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from contrastive.data import cleaning
from contrastive.errors import DataError

_CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
_CLIP_MARKERS = ("<|startoftext|>", "<|endoftext|>")
_BERT_MARKERS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Rules(NamedTuple):
    """What a published model does around the tokens.

    Attributes:
      begin, end: The markers; None = there is none.
      pad: The padding token.
      form: What a text goes through first.
    """

    begin: str | None
    end: str
    pad: str
    form: Callable[[str], str]


PRESETS = {
    "clip": Rules(*_CLIP_MARKERS, "!", cleaning.clip_form),  # "!" is token 0
    "bert": Rules("[CLS]", "[SEP]", "[PAD]", str.strip),  # its lower-casing is in the vocabulary
    "siglip": Rules(None, "</s>", "</s>", cleaning.canonical_form),
    "siglip_transformers": Rules(None, "</s>", "</s>", cleaning.unpunctuated_form),
    "siglip_open_clip": Rules(None, "</s>", "</s>", cleaning.open_clip_form),
    "siglip2": Rules(None, "<eos>", "<pad>", cleaning.lower_form),
    "siglip2_open_clip": Rules(None, "<eos>", "<pad>", cleaning.open_clip_form),
}


def read_vocabulary(path: pathlib.Path | None, preset: str | None) -> tokenizers.Tokenizer:
    """The tokenizer of a file, or of a preset that comes with this package.

    Args:
      path: A ``tokenizer.json``, a SentencePiece ``.model``, for ``bert`` a ``vocab.txt``, for
        ``clip`` a list of merges (either may be gzipped). None: the preset's own.
      preset: One of :data:`PRESETS`, or None.

    Raises:
      DataError: There is no such file, or it is something else.
    """
    if path is None:
        name = {"clip": "clip_merges.txt.gz", "bert": "bert_uncased.txt.gz"}[str(preset)]
        packed = importlib.resources.files("contrastive.data").joinpath("vocabularies", name)
        return _of_preset(str(preset), packed.read_bytes())
    if not path.is_file():
        raise DataError(f"There is no tokenizer file {path}.")
    try:
        if path.suffix == ".json":
            return tokenizers.Tokenizer.from_file(str(path))
        if path.suffix == ".model":
            return sentencepiece(path.read_bytes())
        if preset in ("clip", "bert"):
            return _of_preset(preset, path.read_bytes())
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path} is not a tokenizer: {error}.") from error


def _of_preset(preset: str, data: bytes) -> tokenizers.Tokenizer:
    data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    lines = data.decode("utf-8").split("\n")
    return clip_bpe(lines) if preset == "clip" else wordpiece(lines)


def clip_bpe(lines: Sequence[str]) -> tokenizers.Tokenizer:
    """CLIP's byte pairs (Radford et al. 2021): merges within words that end in ``</w>``.

    Args:
      lines: A merge a line, two pieces; a first line with a version is passed over, and only the
        48,894 merges of the published vocabulary of 49,408 are taken.

    Raises:
      ValueError: A line is no pair.
    """
    if len(lines[0].split()) != 2 or lines[0].startswith("#"):
        lines = lines[1:]
    pairs = [tuple(line.split()) for line in lines[:48_894] if line.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("a line is not a pair of pieces")
    letters = _byte_letters()
    pieces = [*letters, *(f"{c}</w>" for c in letters), *("".join(pair) for pair in pairs)]
    pieces += _CLIP_MARKERS
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[(first, second) for first, second in pairs],
        end_of_word_suffix="</w>",
        unk_token=_CLIP_MARKERS[1],
    )
    backend = _backend(
        model,
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(_CLIP_WORDS), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    )
    backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            decoders.Replace("</w>", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"),
            decoders.ByteLevel(),
        ]
    )
    backend.add_special_tokens(list(_CLIP_MARKERS))
    return backend


def _byte_letters() -> list[str]:
    """A printable letter for each byte: itself where it is one, else one from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]


def wordpiece(lines: Sequence[str], *, lowercase: bool = True) -> tokenizers.Tokenizer:
    """BERT's WordPiece (Devlin et al. 2019), uncased or cased; a piece a line, in the order of the
    ids."""
    pieces = [line.rstrip("\r") for line in lines]
    while pieces and not pieces[-1]:
        pieces.pop()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    missing = [marker for marker in _BERT_MARKERS if marker not in vocabulary]
    if missing:
        raise ValueError(f"it lacks {', '.join(missing)}")
    model = models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    backend = _backend(model, pre_tokenizers.BertPreTokenizer())
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    backend.add_special_tokens(list(_BERT_MARKERS))
    return backend


def sentencepiece(data: bytes) -> tokenizers.Tokenizer:
    """A SentencePiece model (Kudo, Richardson 2018), unigram or byte pairs.

    The sentence is cut as a whole, as that library does; nothing of it is needed.

    Raises:
      ValueError: It is no such model, or one that cuts into words or characters.
    """
    spec = _Spec(data)
    pieces = [(piece.text, piece.score) for piece in spec.pieces]
    ids = {text: i for i, (text, _) in enumerate(pieces)}
    if spec.kind == _UNIGRAM:
        model = models.Unigram(pieces, spec.unknown, spec.byte_fallback)
    else:
        model = models.BPE(
            vocab=ids,
            merges=_merges(dict(pieces), ids),
            unk_token=pieces[spec.unknown][0],
            fuse_unk=True,
            byte_fallback=spec.byte_fallback,
        )
    steps: list[Any] = []
    if spec.charsmap:
        steps.append(normalizers.Precompiled(spec.charsmap))
    if spec.single_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    if spec.prefix:
        steps.append(normalizers.Prepend(_SPACE))
    steps.append(normalizers.Replace(" ", _SPACE))
    backend = _backend(model, None)
    backend.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_UNIGRAM, _BPE = 1, 2
_NORMAL, _USER = 1, 4


class _Piece(NamedTuple):
    text: str
    score: float
    kind: int


class _Spec:
    """The parts of a SentencePiece model file (a protocol buffer) that matter."""

    def __init__(self, data: bytes) -> None:
        self.pieces: list[_Piece] = []
        trainer, normalizer = b"", b""
        for number, value in _messages(data):
            if number == 1:
                self.pieces.append(_piece(value))
            elif number == 2:
                trainer = value
            elif number == 3:
                normalizer = value
        how = dict(_messages(trainer))
        self.kind = how.get(3, _UNIGRAM)
        self.unknown = how.get(40, 0)
        self.byte_fallback = bool(how.get(35, 0))
        form = dict(_messages(normalizer))
        self.charsmap = form.get(2, b"")
        self.prefix = bool(form.get(3, 1))
        self.single_spaces = bool(form.get(4, 1))
        if not self.pieces or self.kind not in (_UNIGRAM, _BPE):
            raise ValueError("it is not a SentencePiece model of unigrams or byte pairs")


def _piece(data: bytes) -> _Piece:
    fields = dict(_messages(data))
    return _Piece(fields[1].decode("utf-8"), fields.get(2, 0.0), fields.get(3, _NORMAL))


def _messages(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer message: number, and integer, float or bytes."""
    at = 0
    while at < len(data):
        tag, at = _integer(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _integer(data, at)
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 2:
            size, at = _integer(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError("it is not a protocol buffer")
        yield tag >> 3, value


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it is not a protocol buffer")
        byte = data[at]
        value, at = value | (byte & 0x7F) << shift, at + 1
        shift += 7
        if byte < 0x80:
            return value, at


def _merges(scores: dict[str, float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merges that make each piece from two others, in the order of the pieces' scores."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            pair = piece[:cut], piece[cut:]
            if pair[0] in ids and pair[1] in ids:
                found.append((-score, ids[pair[0]], ids[pair[1]], pair))
    return [pair for *_, pair in sorted(found)]


def _backend(model: Any, pre_tokenizer: Any) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer  # pyright: ignore[reportAttributeAccessIssue]
    return backend
