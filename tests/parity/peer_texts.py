"""Token ids of other libraries: transformers' tokenizers of SigLIP and SigLIP 2, open_clip's of
SigLIP 2, and big_vision's form of a text (from open_clip) with SentencePiece's own ids.

Runs in the second environment (`make parity`) as `peer_texts.py FOLDER`, where FOLDER holds
`texts.json` and may hold `unigram.model` and `bpe.model`; else these are learned from the texts.
Writes `siglip/` and `siglip2/`, tokenizers as transformers saves them, and `ids.npz`. Imports
nothing of this project.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import sentencepiece
import torchvision_operators  # noqa: F401  before anything that imports torchvision

LENGTH = 64


def learn(folder, texts):
    """Small models with the markers and the settings of the published ones: T5's and Gemma's."""
    lines = iter([text.lower() for text in texts] * 2)
    common = {"sentence_iterator": lines, "minloglevel": 2, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(
        model_prefix=str(folder / "unigram"),
        model_type="unigram",
        vocab_size=700,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        **common,
    )
    common["sentence_iterator"] = iter([text.lower() for text in texts] * 2)
    sentencepiece.SentencePieceTrainer.train(
        model_prefix=str(folder / "bpe"),
        model_type="bpe",
        vocab_size=900,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        byte_fallback=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        split_digits=True,
        **common,
    )


def siglip(folder, texts):
    """transformers reads the SentencePiece file."""
    from transformers import SiglipTokenizer

    out = folder / "siglip"
    out.mkdir(exist_ok=True)
    tokenizer = SiglipTokenizer(vocab_file=str(folder / "unigram.model"))
    tokenizer.save_pretrained(out)
    shutil.copyfile(folder / "unigram.model", out / "spiece.model")
    tokenizer = SiglipTokenizer.from_pretrained(out)
    options = {"padding": "max_length", "truncation": True, "max_length": LENGTH}
    return tokenizer(texts, return_tensors="np", **options).input_ids


def siglip2(folder, texts):
    """transformers turns the model into its own form."""
    from transformers import Siglip2Tokenizer
    from transformers.tokenization_utils_sentencepiece import SentencePieceExtractor

    vocabulary, _, merges = SentencePieceExtractor(str(folder / "bpe.model")).extract()
    options = {"padding_side": "right", "add_eos_token": True}
    tokenizer = Siglip2Tokenizer(vocab=vocabulary, merges=merges, **options)
    tokenizer.save_pretrained(folder / "siglip2")
    tokenizer = Siglip2Tokenizer.from_pretrained(folder / "siglip2")
    options = {"padding": "max_length", "truncation": True, "max_length": LENGTH}
    return tokenizer(texts, return_tensors="np", **options).input_ids


def open_clip(folder, texts):
    """open_clip's own reading of SigLIP 2's vocabulary."""
    from open_clip.tokenizer import HFTokenizer

    tokenizer = HFTokenizer(str(folder / "siglip2"), context_length=LENGTH, clean="canonicalize")
    return tokenizer(texts).numpy()


def canonical(folder, texts):
    """big_vision's form, which open_clip has, then SentencePiece itself."""
    from open_clip.tokenizer import canonicalize_text

    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "unigram.model"))
    rows = np.full((len(texts), LENGTH), model.eos_id(), np.int64)
    for row, text in zip(rows, texts, strict=True):
        ids = model.encode(canonicalize_text(text))[: LENGTH - 1]
        row[: len(ids)] = ids
    return rows


def main(folder):
    folder = pathlib.Path(folder)
    texts = json.loads((folder / "texts.json").read_text())
    if not (folder / "unigram.model").exists():
        learn(folder, texts)
    found = {f.__name__: f(folder, texts) for f in (siglip, siglip2, open_clip, canonical)}
    np.savez_compressed(folder / "ids.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
