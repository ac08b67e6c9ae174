"""The tokenizer of a folder of the transformers library, and how a text is read with it: markers,
padding, lower case, longest text, which end a long text loses.

Several files say these things. Where two of them say different things, the folder is refused: one
of them would be wrong without a word.
"""

import dataclasses
import json
from typing import Any, Literal

import tokenizers
from tokenizers import normalizers

from contrastive.data.text_config import TokenizerConfig
from contrastive.data.vocabulary import read_vocabulary, wordpiece
from contrastive.errors import WeightsError
from contrastive.pretrained.huggingface import token_name
from contrastive.pretrained.source import Settings, Source
from contrastive.towers import EncoderConfig

_ENDLESS = 10**30  # as transformers writes where nobody said how long a text may be
Side = Literal["left", "right"]


@dataclasses.dataclass(frozen=True)
class Preset:
    """How texts are read.

    Attributes:
      vocabulary: The tokenizer; None: the folder has none.
      config: Its markers.
      length: Ids of the longest text, markers included.
      pad_id: The id of the padding.
    """

    vocabulary: tokenizers.Tokenizer | None
    config: TokenizerConfig
    length: int
    pad_id: int


def read_preset(source: Source, config: Settings, text: EncoderConfig) -> Preset:
    """The tokenizer of a folder and its rules.

    Args:
      source: The folder: ``tokenizer.json`` (for BERT ``vocab.txt``), ``tokenizer_config.json``,
        ``sentence_bert_config.json``.
      config: ``config.json``.
      text: The tower that reads the ids.

    Raises:
      WeightsError: Two files contradict each other, or the tokenizer does something that is not
        known here.
    """
    said = Settings(
        source.json("tokenizer_config.json") or {}, str(source.folder / "tokenizer_config.json")
    )
    wrapper = Settings(
        source.json("sentence_bert_config.json") or {},
        str(source.folder / "sentence_bert_config.json"),
    )
    length = _length(wrapper, said, text)
    backend = _backend(source, said)
    pad_id = config.get("pad_token_id", 0)
    if backend is None:
        return Preset(None, TokenizerConfig(), length, pad_id)
    side = _truncation_side(backend, said)
    _check_padding(said, text)
    backend.no_padding()
    backend.no_truncation()
    _check_case(backend, said)
    if wrapper.get("do_lower_case", False):
        _lower_first(backend)
    size = backend.get_vocab_size(with_added_tokens=True)
    if size > text.vocabulary_size:
        raise WeightsError(
            f"the tokenizer of {source.folder} has {size} tokens, but {config.where} says "
            f"vocab_size = {text.vocabulary_size}."
        )
    markers = _markers(backend, said, source)
    found = backend.token_to_id(str(markers.pad_token))
    assert found is not None
    if "pad_token_id" in config.values and found != pad_id:
        raise WeightsError(
            f"{config.where} says pad_token_id = {pad_id}, but {said.where} pads with "
            f"{markers.pad_token!r}, which is token {found}."
        )
    if side == "left":
        backend.enable_truncation(length, direction="left")
    return Preset(backend, markers, length, found)


def _length(wrapper: Settings, said: Settings, text: EncoderConfig) -> int:
    """sentence-transformers' own limit if there is one, else the smaller of the tokenizer's and of
    the positions."""
    own = wrapper.values.get("max_seq_length")
    if own is None:
        limit = said.values.get("model_max_length") or _ENDLESS
        if type(limit) not in (int, float) or not limit >= 1:
            raise WeightsError(
                f"{said.where}: model_max_length = {limit!r} has to be a number above 0."
            )
        return int(min(text.length, limit))
    if type(own) is not int or not 0 < own <= text.length:
        raise WeightsError(
            f"{wrapper.where} says max_seq_length = {own}, but the encoder has {text.length} "
            "positions."
        )
    return own


def _backend(source: Source, said: Settings) -> tokenizers.Tokenizer | None:
    file, plain = source.folder / "tokenizer.json", source.folder / "vocab.txt"
    if file.is_file():
        return read_vocabulary(file, None)
    if plain.is_file() and source.config.get("model_type") == "bert":
        lines = plain.read_text(encoding="utf-8").split("\n")
        try:
            return wordpiece(lines, lowercase=said.get("do_lower_case", True))
        except ValueError as error:
            raise WeightsError(f"{plain} is not a vocabulary of BERT: {error}.") from error
    return None


def _truncation_side(backend: tokenizers.Tokenizer, said: Settings) -> Side:
    inside = None if backend.truncation is None else str(backend.truncation["direction"]).lower()
    outside = said.values.get("truncation_side")
    if outside not in (None, "left", "right"):
        raise WeightsError(f"{said.where}: truncation_side = {outside!r} has to be left or right.")
    if inside and outside and inside != outside:
        raise WeightsError(
            f"{said.where} says truncation_side = {outside!r}, but tokenizer.json cuts on the "
            f"{inside}."
        )
    return "left" if "left" in (inside, outside) else "right"


def _check_padding(said: Settings, text: EncoderConfig) -> None:
    """Padding is on the right here. On the left it would shift learned positions; rotary ones it
    leaves alone."""
    if said.values.get("padding_side") == "left" and text.positions == "learned":
        raise WeightsError(
            f"{said.where} says padding_side = 'left', which shifts the positions of a text by its "
            "padding; encoders with learned positions are padded on the right here."
        )


def _check_case(backend: tokenizers.Tokenizer, said: Settings) -> None:
    """BERT's tokenizer says twice whether it lowers letters."""
    inner = json.loads(backend.to_str())["normalizer"] or {}
    outside = said.values.get("do_lower_case")
    if inner.get("type") != "BertNormalizer" or outside is None:
        return
    if inner["lowercase"] != outside:
        raise WeightsError(
            f"{said.where} says do_lower_case = {outside}, but tokenizer.json says lowercase = "
            f"{inner['lowercase']}."
        )


def _lower_first(backend: tokenizers.Tokenizer) -> None:
    """As sentence-transformers' ``do_lower_case`` does it: before all else."""
    lower: list[Any] = [normalizers.Lowercase()]
    inner = backend.normalizer
    steps = lower if inner is None else [*lower, inner]
    backend.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]


def _markers(backend: tokenizers.Tokenizer, said: Settings, source: Source) -> TokenizerConfig:
    """What the tokenizer itself puts around a text, a token on each side; a list of pieces puts
    nothing, then it is what the configuration names."""
    alone = backend.encode("a", add_special_tokens=False).ids
    dressed = backend.encode("a", add_special_tokens=True).ids
    extra = len(dressed) - len(alone)
    if extra not in (0, 2) or (extra and dressed[1:-1] != alone):
        raise WeightsError(
            f"{source.folder / 'tokenizer.json'} puts {extra} tokens around a text; one before and "
            "one after it are known here."
        )
    begin = token_name(said.values.get("cls_token")) or "[CLS]"
    end = token_name(said.values.get("sep_token")) or "[SEP]"
    if extra:
        begin, end = backend.id_to_token(dressed[0]), backend.id_to_token(dressed[-1])
    more = source.json("special_tokens_map.json") or {}
    pad = token_name(said.values.get("pad_token", more.get("pad_token")))
    known = [name for name in ([pad] if pad else ["[PAD]", "<pad>"]) if _has(backend, name)]
    if not known:
        raise WeightsError(f"the tokenizer of {source.folder} has no padding token.")
    return TokenizerConfig(
        path="tokenizer.json", begin_token=begin, end_token=end, pad_token=known[0]
    )


def _has(backend: tokenizers.Tokenizer, name: str) -> bool:
    return backend.token_to_id(name) is not None
