"""Token ids: layout of a row, truncation, determinism, foreign vocabularies."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

from contrastive.data.config import DataConfig
from contrastive.data.records import InMemorySource
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import load_tokenizer, read_tokenizer, train_tokenizer
from contrastive.errors import ConfigError, DataError

CONFIG = TokenizerConfig()
WORDS = ["grinning face", "face with tears of joy", "café", "日本語の猫", "tears of a cat", "a b"]


@pytest.fixture
def tokenizer():
    return train_tokenizer(WORDS, length=12, config=CONFIG)


def test_layout_of_a_row(tokenizer):
    rows = tokenizer.encode(["face", "a", ""])
    assert rows.dtype == np.int32
    assert rows.shape == (3, 12)
    assert (rows < tokenizer.vocabulary_size).all()
    for row in rows:
        (end,) = np.flatnonzero(row == tokenizer.end_id)
        assert row[0] == tokenizer.begin_id
        assert (row[end + 1 :] == tokenizer.pad_id).all()
        assert (row[:end] != tokenizer.pad_id).all()
    assert np.flatnonzero(rows[2] == tokenizer.end_id) == [1]


def test_B18_too_long_captions_keep_the_end_token(tokenizer):
    cats = {n: " ".join(["face"] * n) for n in (9, 10, 11, 100)}
    (piece,) = set(tokenizer.encode([cats[9]])[0]) - {
        tokenizer.begin_id,
        tokenizer.end_id,
        tokenizer.pad_id,
    }
    full = [tokenizer.begin_id, *[piece] * 10, tokenizer.end_id]
    encoded = tokenizer.encode_counted([cats[9], cats[10], cats[11], cats[100]])
    assert encoded.truncated == 2
    for row in encoded.ids[1:]:
        assert row.tolist() == full
    assert encoded.ids[0].tolist() == [*full[:10], tokenizer.end_id, tokenizer.pad_id]


def test_same_text_same_ids(tokenizer):
    forms = ["café face", "CAFE\N{COMBINING ACUTE ACCENT}  Face\n", "\tcafé\u00a0face "]
    rows = tokenizer.encode(forms)
    assert (rows == rows[0]).all()
    first, last = tokenizer.encode(["face with", "with face"])
    assert set(first) == set(last)  # a word has the same ids wherever it stands


def test_any_language_and_no_unknown_token(tokenizer):
    texts = ["猫の絵", "👨‍👩‍👧 family", "naïve Ωmega", "\x00\x01", "𝔘𝔫𝔦"]
    wide = train_tokenizer(WORDS, length=64, config=CONFIG)
    rows = wide.encode(texts)
    assert len({tuple(row) for row in rows}) == len(texts)
    assert wide.decode(rows[0]) == "猫の絵"
    assert wide.decode(wide.encode(["Grinning  face, with a hat!"])[0]) == (
        "grinning face, with a hat!"
    )


def test_common_words_are_one_piece_and_rare_ones_are_not(tokenizer):
    lengths = np.count_nonzero(tokenizer.encode(["tears", "face", "grinning"]), axis=1)
    assert lengths.tolist() == [3, 3, 9]


def test_whole_words_and_one_unknown_token(tmp_path):
    config = TokenizerConfig(kind="words")
    tokenizer = train_tokenizer(WORDS, length=12, config=config)
    known, unknown = tokenizer.encode(["Face, with TEARS", "face, with wings"])
    assert tokenizer.unknown_id not in known
    assert len(set(known[1:4].tolist())) == 3  # a comma is no word
    assert unknown[1:3].tolist() == known[1:3].tolist()
    assert unknown[3] == tokenizer.unknown_id
    assert tokenizer.decode(tokenizer.encode(["face with tears"])[0]) == "face with tears"
    tokenizer.save(tmp_path / "tokenizer.json")
    again = read_tokenizer(tmp_path / "tokenizer.json", length=12, config=config)
    assert again.encode(["face, with wings"]).tolist() == [unknown.tolist()]
    small = TokenizerConfig(kind="words", vocabulary_size=260)
    many = [f"word{i}" for i in range(300)] + [f"word{i} again" for i in range(10)]
    tokenizer = train_tokenizer(many, length=12, config=small)
    assert tokenizer.vocabulary_size == 260
    assert tokenizer.unknown_id not in tokenizer.encode(["again word3 word9"])  # the frequent ones


def test_hidden_tokens_are_text_and_become_the_unknown_token():
    tokenizer = train_tokenizer(WORDS, length=6, config=TokenizerConfig(kind="words", hidden=0.5))
    ids = tokenizer.encode(["face with tears", "cat"])
    u = np.array([[0.0, 0.6, 0.4, 0.5, 0.0, 0.0]] * 2)
    hidden = tokenizer.hide(ids, u, 0.5)
    changed = np.argwhere(hidden != ids).tolist()
    assert changed == [[0, 2]]  # not the markers, not the padding, nothing at 0.5 and above
    assert hidden[0, 2] == tokenizer.unknown_id
    with pytest.raises(ConfigError, match="needs a tokenizer with an unknown token"):
        train_tokenizer(WORDS, length=6, config=TokenizerConfig(hidden=0.5))
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        TokenizerConfig(kind="words", hidden=1.0)


def test_a_piece_with_the_id_of_the_padding_is_text():
    """A vocabulary that pads with a piece of its own, as CLIP's does."""
    tokenizer = train_tokenizer(WORDS, length=8, config=TokenizerConfig(kind="words", hidden=0.5))
    piece = int(tokenizer.encode(["cat"])[0, 1])
    tokenizer.pad_id = piece
    rows = tokenizer.encode(["cat", "face cat tears", "cat cat"])
    assert tokenizer.lengths(rows).tolist() == [3, 5, 4]
    assert tokenizer.decode(rows[1]) == "face cat tears"
    assert tokenizer.pieces(rows[2])[1:-1] == ["cat", "cat"]
    hidden = tokenizer.hide(rows, np.zeros(rows.shape), 0.5)
    assert (hidden == tokenizer.unknown_id).sum(axis=1).tolist() == [1, 3, 2]
    tokenizer.end_id = None
    no_end = np.array([[piece, 9, piece, 8, piece, piece]], np.int32)
    assert tokenizer.lengths(no_end).tolist() == [4]
    assert tokenizer.lengths(np.full((1, 3), piece, np.int32)).tolist() == [0]


def test_vocabulary_size_is_a_limit():
    texts = [f"{a}{b} word" for a in "abcdefghij" for b in "klmnopqrst"] * 2
    full = train_tokenizer(texts, length=8, config=CONFIG)
    small = train_tokenizer(texts, length=8, config=TokenizerConfig(vocabulary_size=262))
    assert small.vocabulary_size == 262 < full.vocabulary_size
    assert np.count_nonzero(small.encode(["word"])) > np.count_nonzero(full.encode(["word"]))
    with pytest.raises(ConfigError, match=r"vocabulary_size = 258 has to be at least 259"):
        TokenizerConfig(vocabulary_size=258)


def test_learned_vocabulary_depends_only_on_the_set_of_texts(tmp_path):
    """Not on their order, repetition, threads or the process's hash seed."""
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnop")
    texts = [
        " ".join("".join(rng.choice(letters, rng.integers(2, 6))) for _ in range(3))
        for _ in range(800)
    ]
    files = []
    for order in (texts, texts[::-1] + texts[:100]):
        files.append(tmp_path / f"{len(files)}.json")
        train_tokenizer(order, length=8, config=CONFIG).save(files[-1])
    code = (
        "import sys, pathlib\n"
        "from contrastive.data.config import TokenizerConfig\n"
        "from contrastive.data.tokenizer import train_tokenizer\n"
        "texts = pathlib.Path(sys.argv[1]).read_text().splitlines()\n"
        "t = train_tokenizer(texts, length=8, config=TokenizerConfig())\n"
        "t.save(pathlib.Path(sys.argv[2]))\n"
    )
    (tmp_path / "texts").write_text("\n".join(texts))
    for seed, parallel in (("1", "true"), ("2", "false")):
        files.append(tmp_path / f"{len(files)}.json")
        subprocess.run(
            [sys.executable, "-c", code, tmp_path / "texts", files[-1]],
            env={"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel},
            check=True,
        )
    assert len({file.read_bytes() for file in files}) == 1


def test_saved_and_read_again(tokenizer, tmp_path):
    file = tmp_path / "tokenizer.json"
    tokenizer.save(file)
    again = read_tokenizer(file, length=12, config=CONFIG)
    np.testing.assert_array_equal(again.encode(WORDS), tokenizer.encode(WORDS))
    assert (again.pad_id, again.begin_id, again.end_id) == (0, 1, 2)
    assert again.vocabulary_size == tokenizer.vocabulary_size
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.fixture
def bert_file(tmp_path):
    """A vocabulary of another maker, with padding, truncation and markers of its own."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<start>", "cat", "dog", "##s"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=5, pad_id=7)
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    file = tmp_path / "bert.json"
    backend.save(str(file))
    return file


def test_a_given_tokenizer_keeps_its_markers(bert_file):
    tokenizer = read_tokenizer(bert_file, length=6, config=CONFIG)
    rows = tokenizer.encode(["cats dog", "dog dog dog dog dog dog", "bird"])
    assert rows.tolist() == [[2, 5, 7, 6, 3, 0], [2, 6, 6, 6, 6, 3], [2, 1, 3, 0, 0, 0]]


def test_markers_can_be_named(bert_file):
    named = TokenizerConfig(begin_token="<start>", end_token="dog", pad_token="[UNK]")
    tokenizer = read_tokenizer(bert_file, length=4, config=named)
    assert tokenizer.encode(["cat"]).tolist() == [[4, 5, 6, 1]]
    with pytest.raises(ConfigError, match=r"tokenizer\.end_token = '<stop>' is not in"):
        read_tokenizer(bert_file, length=4, config=TokenizerConfig(end_token="<stop>"))
    with pytest.raises(ConfigError, match="text_length = 2 leaves no room"):
        read_tokenizer(bert_file, length=2, config=CONFIG)


def test_without_a_padding_token(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"cat": 0, "!": 1}, unk_token="!"))
    file = tmp_path / "bare.json"
    backend.save(str(file))
    with pytest.raises(ConfigError, match="pad_token has to name the padding token of bare"):
        read_tokenizer(file, length=4, config=TokenizerConfig(path="bare"))
    tokenizer = read_tokenizer(file, length=3, config=TokenizerConfig(pad_token="!"))
    assert tokenizer.encode(["cat"]).tolist() == [[0, 1, 1]]


def test_the_runs_folder_keeps_the_tokenizer(make_records, bert_file, tmp_path):
    config = DataConfig(text_length=8)
    workdir = tmp_path / "run"
    workdir.mkdir()
    source = InMemorySource(make_records(5, keywords=["red"]))
    first = load_tokenizer(config, source, workdir)
    saved = (workdir / "tokenizer.json").read_bytes()
    other = InMemorySource(make_records(50))
    second = load_tokenizer(config, other, workdir)  # not learned anew
    third = load_tokenizer(config, workdir=workdir)
    for tokenizer in (second, third):
        np.testing.assert_array_equal(tokenizer.encode(WORDS), first.encode(WORDS))
    assert (workdir / "tokenizer.json").read_bytes() == saved
    given = dataclasses.replace(config, tokenizer=TokenizerConfig(path=str(bert_file)))
    assert load_tokenizer(given).vocabulary_size == 8
    with pytest.raises(DataError, match="no tokenizer"):
        load_tokenizer(config, workdir=tmp_path)


def test_files_that_are_no_tokenizer(tmp_path):
    with pytest.raises(DataError, match="There is no tokenizer file"):
        read_tokenizer(tmp_path / "x.json", length=8, config=CONFIG)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(DataError, match="is not a tokenizer"):
        read_tokenizer(tmp_path / "x.json", length=8, config=CONFIG)
