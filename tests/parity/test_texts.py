"""Token ids of SigLIP and SigLIP 2 against transformers' and open_clip's, and against big_vision's
form of a text with SentencePiece's own ids; `tests/parity/peer_texts.py` asks those libraries."""

import json
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import Tokenizer, read_tokenizer
from contrastive.pretrained import huggingface, open_clip
from contrastive.pretrained.source import Settings, Source
from tests.data.odd_texts import MARKERS, odd_texts

ROOT = pathlib.Path(__file__).parents[2]
COMMITTED = pathlib.Path(__file__).parent / "fixtures" / "texts"
UNIGRAM = ROOT / "tests" / "data" / "fixtures" / "unigram.model"
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
LENGTH = 64


def folder_of_siglip(folder, model):
    """A folder as transformers saves it: the file, and whose class reads it."""
    folder.mkdir(parents=True)
    shutil.copyfile(model, folder / "spiece.model")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "SiglipTokenizer"}')
    return folder


def tokenizer_of(found):
    assert found.vocabulary is not None
    return Tokenizer(found.vocabulary, length=LENGTH, config=found.config)


def check(siglip, siglip2, unigram, wanted, most):
    """All texts have the ids that the libraries give them; ``most`` ids of words at least."""
    texts = [*odd_texts(), *MARKERS]
    read = {name: huggingface.texts(Source(f, f / "none")) for name, f in
            (("siglip", siglip), ("siglip2", siglip2))}  # fmt: skip
    ours = {name: tokenizer_of(found) for name, found in read.items()}
    there = Settings({"hf_tokenizer_name": "x", "tokenizer_kwargs": {"clean": "canonicalize"}}, "x")
    found = open_clip.texts(Source(siglip2, siglip2 / "none"), there)
    ours["open_clip"] = tokenizer_of(found)
    preset = TokenizerConfig(preset="siglip", path="of the authors")
    ours["canonical"] = read_tokenizer(unigram, length=LENGTH, config=preset)
    for name, tokenizer in ours.items():
        ids = tokenizer.encode(texts)
        assert wanted[name].shape == ids.shape == (275 + len(MARKERS), LENGTH)
        assert len(np.unique(ids)) > most
        # transformers takes a marker that a text spells for one, SigLIP's reading here does not.
        compared = slice(None, len(odd_texts()) if name == "siglip" else None)
        for text, row, theirs in zip(
            texts[compared], ids[compared], wanted[name][compared], strict=True
        ):
            assert row.tolist() == theirs.tolist(), (name, text)


def test_ids_are_those_that_the_libraries_gave(tmp_path):
    """Ids of transformers 5.24, open_clip 3.3 and sentencepiece 0.2.3."""
    siglip = folder_of_siglip(tmp_path / "siglip", UNIGRAM)
    check(siglip, COMMITTED / "siglip2", UNIGRAM, np.load(COMMITTED / "ids.npz"), 80)


def test_whose_underscore_it_is(tmp_path):
    """transformers deletes it, big_vision and open_clip make it a space."""
    found = huggingface.texts(
        Source(folder_of_siglip(tmp_path / "siglip", UNIGRAM), tmp_path / "none")
    )
    theirs = tokenizer_of(found)
    ours = read_tokenizer(UNIGRAM, length=LENGTH, config=TokenizerConfig(preset="siglip", path="x"))
    np.testing.assert_array_equal(theirs.encode(["a_dog"]), ours.encode(["adog"]))
    np.testing.assert_array_equal(ours.encode(["a_dog"]), ours.encode(["a dog"]))
    assert (theirs.encode(["a_dog"]) != ours.encode(["a_dog"])).any()


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`")
def test_ids_are_those_that_the_libraries_give(tmp_path):
    """With vocabularies that are learned there, from the texts themselves."""
    (tmp_path / "texts.json").write_text(json.dumps([*odd_texts(), *MARKERS]))
    script = ROOT / "tests" / "parity" / "peer_texts.py"
    subprocess.run([PYTHON, "-W", "ignore", script, tmp_path], check=True, timeout=300)
    wanted = np.load(tmp_path / "ids.npz")
    folders = tmp_path / "siglip", tmp_path / "siglip2", tmp_path / "unigram.model"
    check(*folders, wanted, 150)
