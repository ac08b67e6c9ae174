"""Published models' tokenizers: their ids, their padding, and what they do to a text first."""

import html
import json
import pathlib

import ftfy
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contrastive.data import cleaning, vocabulary
from contrastive.data.config import DataConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import load_tokenizer, read_tokenizer
from contrastive.errors import ConfigError, DataError

FIXTURES = pathlib.Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def clip():
    return read_tokenizer(None, length=77, config=TokenizerConfig(preset="clip"))


def between_markers(row):
    ids = row.tolist()
    assert ids[0] == 49406
    end = ids.index(49407)
    assert set(ids[end + 1 :]) <= {0}  # CLIP pads with 0
    return ids[1:end]


@pytest.mark.parametrize(
    "text,ids",
    [
        ("hello world", [3306, 1002]),
        ("Hello   World\n", [3306, 1002]),
        ("1233", [272, 273, 274, 274]),
        ("12 33", [272, 273, 274, 274]),
        ("don't stop", [847, 713, 1691]),
        ("a photo of a 🐶", [320, 1125, 539, 320, 10631]),
        ("👨\u200d👩\u200d👧", [25023, 26304, 964, 356]),
        ("日本語の猫", [39121, 44353, 34002, 252, 21575, 163, 234, 360]),
        ("caf\u00e9", [15304]),
        ("cafe\u0301", [15304]),
        ("a photo of a cat.", [320, 1125, 539, 320, 2368, 269]),
        ("!!!", [995]),
        ("cats &amp;amp; dogs", [3989, 261, 3255]),
        ("", []),
    ],
)
def test_B14_clip_ids(clip, text, ids):
    row = clip.encode([text])[0]
    assert row.shape == (77,)
    assert between_markers(row) == ids
    assert clip.vocabulary_size == 49_408
    assert (clip.begin_id, clip.end_id, clip.pad_id) == (49_406, 49_407, 0)


@pytest.mark.parametrize(
    "text,ids",
    [
        ("\u201cDon\u2019t stop\u201d \u2013 she said\u2026",
         [257, 847, 713, 1691, 257, 1224, 1043, 1946, 959]),
        ("\ufb01ne \uff26\uff35\uff2c\uff2c width", [3797, 1476, 23571]),
        ("caf\u00c3\u00a9 au lait \u00e2\u20ac\u0153quoted\u00e2\u20ac\u009d",
         [15304, 2566, 572, 585, 257, 27706, 257]),
        ("a\u0000b\u001b[31mred\u001b[0m c", [596, 736, 322]),
        ("na\u00efve\u00a0space\u2028line\r\nend", [1097, 35689, 563, 2138, 1148, 806]),
        ("e\u0301t\u00e9 \u2460 \u00bd \u2122", [3459, 39694, 158, 239, 510, 33613, 11675]),
        ("l\u2019h\u00f4tel &quot;r\u00e9al&quot; &#39;q&#39;",
         [331, 262, 71, 26815, 2226, 257, 29106, 566, 257, 262, 336, 262]),
        ("\u00e2\u0153\u201d done !!! ! a!", [13749, 1700, 995, 256, 320, 256]),
    ],
)  # fmt: skip
def test_texts_are_repaired_as_clip_does(clip, text, ids):
    """The ids are those of open_clip 3.3.0 with ftfy 6.3.1."""
    assert between_markers(clip.encode([text])[0]) == ids


def test_B14_padding_is_what_follows_the_end_token(clip):
    """0 is also the piece "!": a text that holds it is shown whole, its padding is not."""
    row = clip.encode(["cat !\u00a1"])[0]
    assert 0 in between_markers(row)[:-1]
    assert clip.decode(row) == "cat !¡"
    assert clip.pieces(clip.encode(["cat"])[0]) == ["<|startoftext|>", "cat</w>", "<|endoftext|>"]
    assert (
        clip.decode(clip.encode(["Family 👨\u200d👩\u200d👧 café"])[0])
        == "family 👨\u200d👩\u200d👧 café"
    )


def test_B18_too_long_captions_keep_the_end_token(clip):
    rows, cut = clip.encode_counted([" ".join(["cat"] * n) for n in (75, 76, 100)])
    for row in rows:
        assert row.tolist() == [49_406, *[2368] * 75, 49_407]
    assert cut == 2


def test_B19_B20_empty_text_and_byte_order_mark(clip):
    assert clip.encode([""])[0].tolist()[:3] == [49_406, 49_407, 0]
    assert clip.encode(["a"])[0].tolist()[:3] == [49_406, 320, 49_407]


def siglip(name, tmp_path):
    """The preset on a small vocabulary: the published ones have the same markers."""
    config = TokenizerConfig(preset=name, path=str(FIXTURES / FILES[name]))
    return load_tokenizer(DataConfig(text_length=64, tokenizer=config), None, tmp_path)


FILES = {"siglip": "unigram.model", "siglip2": "bpe.model"}


@pytest.mark.parametrize("name,pad,end", [("siglip", 1, 1), ("siglip2", 0, 1)])
def test_B22_siglip_padding_and_case(tmp_path, name, pad, end):
    tokenizer = siglip(name, tmp_path)
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (None, end, pad)
    long = "cat " * 40
    alone, together = tokenizer.encode(["a dog"]), tokenizer.encode(["a dog", long])
    assert together.shape == (2, 64)
    np.testing.assert_array_equal(alone[0], together[0])
    text = alone[0].tolist()
    assert text[text.index(end) + 1 :] == [pad] * (63 - text.index(end))
    cut = tokenizer.encode(["cat " * 200])[0]
    assert cut[63] == end
    assert np.count_nonzero(cut == end) == 1
    np.testing.assert_array_equal(tokenizer.encode(["A Dog"]), alone)
    assert tokenizer.decode(alone[0]) == "a dog"
    again = load_tokenizer(
        DataConfig(
            text_length=64,
            tokenizer=TokenizerConfig(preset=name, path=str(FIXTURES / FILES[name])),
        ),
        None,
        tmp_path,
    )  # from the run's folder
    np.testing.assert_array_equal(
        again.encode(["A Dog!", long]), tokenizer.encode(["A Dog!", long])
    )


def test_siglip_leaves_punctuation_out(tmp_path):
    tokenizer = siglip("siglip", tmp_path)
    np.testing.assert_array_equal(
        tokenizer.encode(["A_dog, (old)!"]), tokenizer.encode(["a dog old"])
    )


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_ids_are_those_of_its_own_library(kind):
    """Expected ids: sentencepiece 0.2.3; the models were trained on the emoji's names."""
    backend = vocabulary.sentencepiece((FIXTURES / f"{kind}.model").read_bytes())
    expected = json.loads((FIXTURES / "sentencepiece.json").read_text())[kind]
    assert len(expected) == 8
    for text, ids in expected.items():
        assert backend.encode(text, add_special_tokens=False).ids == ids, text


def test_bert_is_uncased_and_has_its_markers():
    """Expected ids: the tokenizer.json of all-MiniLM-L6-v2."""
    tokenizer = read_tokenizer(None, length=16, config=TokenizerConfig(preset="bert"))
    rows = tokenizer.encode(["A photo of a Café's cat.", "日本 unbelievably, tokenization! 🐶"])
    assert rows.tolist() == [
        [101, 1037, 6302, 1997, 1037, 7668, 1005, 1055, 4937, 1012, 102, 0, 0, 0, 0, 0],
        [101, 1864, 1876, 4895, 8671, 2666, 3567, 6321, 1010, 19204, 3989, 999, 100, 102, 0, 0],
    ]
    assert tokenizer.vocabulary_size == 30_522
    assert tokenizer.encode(["cat " * 30])[0].tolist() == [101, *[4937] * 14, 102]


def test_forms_of_texts():
    assert cleaning.clip_form(" A &lt;b&gt;\tCafe\u0301 ") == "a <b> café"
    assert cleaning.clip_form("\u201cQuoted\u201d caf\u00c3\u00a9 \ufb01sh") == '"quoted" café fish'
    assert cleaning.canonical_form("A_Dog,  don't (stop)\n") == "a dog dont stop"
    assert cleaning.unpunctuated_form("A_Dog,  don't (stop)\n") == "adog dont stop"
    assert cleaning.open_clip_form("A_Dog &amp; caf\u00c3\u00a9\n") == "a dog café"
    assert cleaning.lower_form(" A Dog, ÄB! ") == " a dog, äb! "


@example("a cat &amp; a dog")
@example("\x1b[31mred\x1b[0m and\x07 bell")
@given(st.text(st.sampled_from([chr(i) for i in range(128)])) | st.text(max_size=8))
def test_texts_that_are_not_given_to_ftfy_are_those_that_it_leaves_as_they_are(text):
    repaired = html.unescape(html.unescape(ftfy.fix_text(text)))
    assert cleaning.clip_form(text) == " ".join(repaired.split()).lower()


def test_vocabulary_files_of_ones_own(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\n##s\n")
    bert = TokenizerConfig(preset="bert", path=str(tmp_path / "vocab.txt"))
    tokenizer = load_tokenizer(DataConfig(text_length=5, tokenizer=bert))
    assert tokenizer.encode(["Cats"]).tolist() == [[2, 5, 6, 3, 0]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\nc a\nca t</w>\n")
    clip = TokenizerConfig(preset="clip", path=str(tmp_path / "merges.txt"))
    tokenizer = load_tokenizer(DataConfig(text_length=77, tokenizer=clip))
    assert tokenizer.vocabulary_size == 516
    assert tokenizer.encode(["CAT"])[0].tolist()[:4] == [514, 513, 515, 0]


def test_files_that_are_something_else(tmp_path):
    for name, data, preset in (
        ("x.model", b"no model at all", None),
        ("x.model", b"", None),
        ("vocab.txt", b"cat\ndog\n", "bert"),
        ("merges.txt", b"a b c\nd e\nf\n", "clip"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f"{name} is not a tokenizer"):
            vocabulary.read_vocabulary(tmp_path / name, preset)


@pytest.mark.parametrize(
    "make,sentence",
    [
        (lambda: TokenizerConfig(preset="siglip"), "'siglip' needs config.data.tokenizer.path"),
        (lambda: TokenizerConfig(preset="clip", end_token="x"), "end_token belongs to the preset"),
        (lambda: with_length("clip", 76), "text_length = 76, but the preset 'clip' has 77"),
        (lambda: with_length("siglip2", 77, "x.model"), "'siglip2' has 64 ids"),
        (lambda: with_length("bert", 513), "'bert' has 512"),
    ],
)
def test_presets_own_their_settings(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()


def with_length(preset, length, path=None):
    return DataConfig(text_length=length, tokenizer=TokenizerConfig(preset=preset, path=path))
