"""Your own table: columns, encodings, splits, and every sentence that says what is wrong."""

import dataclasses
import json
import os

import numpy as np
import pytest

from contrastive.data.captions import canonical
from contrastive.data.config import DataConfig
from contrastive.data.examples import read_examples
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.records import SampleError, Source
from contrastive.data.source_config import CsvConfig
from contrastive.data.sources import content_ids, open_source
from contrastive.data.tokenizer import texts
from contrastive.errors import ConfigError, DataError

ALL = CsvConfig(held_out_share=0.0)


def config_of(path, csv=ALL, **kwargs):
    return DataConfig(source=str(path), image_size=8, text_length=8, csv=csv, **kwargs)


def open_all(path, csv=ALL):
    return open_source(config_of(path, csv), "train")


def captions_of(source):
    return [source[i]["caption"] for i in range(len(source))]


def test_records_of_a_table(write_table):
    path = write_table(
        "image,caption,keywords\n0.png,a cat,feline|pet\n1.png, a dog ,\n", pictures=2
    )
    source = open_all(path)
    assert isinstance(source, Source)
    assert len(source) == 2
    record = source[0]
    assert record["image"] == (path.parent / "0.png").read_bytes()
    assert (record["caption"], record["keywords"]) == ("a cat", ["feline", "pet"])
    assert (record["id"], record["key"]) == (-1, "0.png (line 2)")
    assert (source[1]["caption"], source[1]["keywords"]) == ("a dog", [])


@pytest.mark.parametrize(
    "name,text,csv",
    [
        ("p.tsv", "caption\timage\na cat, old\t0.png\n", {}),
        ("p.csv", "caption;image\na cat, old;0.png\n", {"delimiter": ";"}),
        ("p.csv", 'caption,image\n"a cat, old",0.png\n', {}),
        ("p.csv", "file,n,text\n0.png,7,a cat| old\n", {"image": "file", "caption": "text"}),
        ("p.csv", 'image,caption,keywords\r\n0.png,"a cat, old",x;y\r\n', {}),
        ("p.csv", 'image,caption\n\n0.png,"a cat, old"\n,\n', {}),
    ],
    ids=["tsv", "semicolon", "quoted", "named", "crlf", "blank-rows"],
)
def test_forms_of_tables(write_table, name, text, csv):
    path = write_table(text, pictures=1, name=name)
    source = open_all(path, dataclasses.replace(ALL, **csv))
    assert captions_of(source) == ["a cat| old" if "|" in text else "a cat, old"]


def test_options_of_keywords(write_table):
    path = write_table("image,caption,words\n0.png,a cat,x;y\n", pictures=1)
    csv = dataclasses.replace(ALL, keywords="words", keywords_separator=";")
    assert open_all(path, csv)[0]["keywords"] == ["x", "y"]
    assert open_all(path)[0]["keywords"] == []


def test_image_paths_are_relative_to_the_table(write_table, tmp_path, monkeypatch):
    path = write_table("image,caption\n0.png,a cat\n", pictures=1)
    monkeypatch.chdir("/")
    assert open_all(path)[0]["image"]
    absolute = write_table(f"image,caption\n{tmp_path / '0.png'},a cat\n", name="other.csv")
    assert open_all(absolute)[0]["image"]


def test_B20_byte_order_mark_is_removed(write_table):
    path = write_table(b"\xef\xbb\xbfimage,caption\n0.png,a\n", pictures=1)
    assert captions_of(open_all(path)) == ["a"]


def test_B20_caption_that_is_not_utf8_follows_the_setting(write_table):
    path = write_table(b"image,caption\n0.png,caf\xe9\n1.png,tea\n", pictures=2)
    with pytest.raises(SampleError, match="text is not utf-8"):
        open_all(path)[0]
    assert open_all(path)[1]["caption"] == "tea"
    replace = dataclasses.replace(ALL, undecodable="replace")
    assert captions_of(open_all(path, replace)) == ["caf\N{REPLACEMENT CHARACTER}", "tea"]
    latin = dataclasses.replace(ALL, encoding="latin-1")
    assert captions_of(open_all(path, latin)) == ["café", "tea"]
    assert list(texts(open_all(path))) == ["tea"]


def test_B20_file_name_with_an_odd_byte(write_table, tmp_path):
    name = os.path.join(os.fsencode(tmp_path), b"it\x92s.png")
    path = write_table(b"image,caption\nit\x92s.png,a cat\ngone\x92.png,a dog\n", pictures=1)
    try:
        os.rename(tmp_path / "0.png", name)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    log = tmp_path / "data_errors.jsonl"
    found = read_examples(open_all(path), config_of(path, max_bad_share=0.5), error_log=log)
    assert found.captions == ["a cat"]
    assert json.loads(log.read_text())["key"] == "gone\\x92.png (line 3)"


def test_bad_rows_are_skipped_and_counted_by_reason(write_table, tmp_path):
    path = write_table(
        b"image,caption\n0.png,zero\n1.png,one\nnone.png,two\n0.png,\n0.png,  \n0.png\n"
        b"broken.png,three\n0.png,a cat, sitting\n,four\n0.png,caf\xe9\nfolder,five\n",
        pictures=2,
    )
    (tmp_path / "broken.png").write_bytes((tmp_path / "0.png").read_bytes()[:-200])
    (tmp_path / "folder").mkdir()
    log = tmp_path / "data_errors.jsonl"
    found = read_examples(open_all(path), config_of(path, max_bad_share=0.9), error_log=log)
    assert found.captions == ["zero", "one"]
    assert found.errors.counts == {
        "empty caption": 3,
        "missing image": 2,
        "decode error": 1,
        "more cells than columns": 1,
        "text is not utf-8": 1,
        "unreadable image file": 1,
    }
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) == 9
    assert entries[0] == {
        "index": 2,
        "key": "none.png (line 4)",
        "reason": "missing image",
        "detail": "there is no such file",
    }


@pytest.mark.parametrize(
    "text,csv,sentence",
    [
        ("", {}, "is empty; it needs a header line with the columns 'image' and 'caption'"),
        (" \n", {}, "is empty"),
        ("image,caption\n", {}, "has a header line but no rows"),
        ("file,text\n0.png,a\n", {}, "no column 'image'; its columns are 'file', 'text'"),
        ("image,text\n0.png,a\n", {}, r"no column 'caption'.*config\.data\.csv\.caption"),
        ("image;caption\n0.png;a\n", {}, r"separated by ';', set config\.data\.csv\.delimiter"),
        ('image,caption\n0.png,a\n0.png,"b\n0.png,c\n', {}, "row that begins in line 3 is malf"),
        ('image,caption\n0.png,"b" c\n', {}, "csv.quoted=False"),
        (b"\xff\xfei\x00", {}, "csv.encoding=utf-16"),
        (b"\xff\xfei", {"encoding": "utf-16"}, "is not a text in utf-16"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence(write_table, text, csv, sentence):
    path = write_table(text)
    with pytest.raises(DataError, match=sentence) as error:
        open_all(path, dataclasses.replace(ALL, **csv))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_table(tmp_path):
    with pytest.raises(DataError, match=r"There is no file .*gone\.csv.*'image' and 'caption'"):
        open_all(tmp_path / "gone.csv")


def test_plain_quotes(write_table):
    path = write_table('image,caption\n0.png,"b" c\n', pictures=1)
    assert captions_of(open_all(path, dataclasses.replace(ALL, quoted=False))) == ['"b" c']


def test_utf16_table(write_table):
    path = write_table("image,caption\n0.png,né\n".encode("utf-16"), pictures=1)
    assert captions_of(open_all(path, dataclasses.replace(ALL, encoding="utf-16"))) == ["né"]


def test_splits_by_column(write_table):
    path = write_table(
        "image,caption,split\n0.png,a,train\n1.png,b,test\n0.png,c,train\n", pictures=2
    )
    config = config_of(path, CsvConfig())
    assert captions_of(open_source(config, "train")) == ["a", "c"]
    assert captions_of(open_source(config, "test")) == ["b"]
    with pytest.raises(DataError, match=r"no row of the split 'validation'.*'test', 'train'"):
        open_source(config, "validation")
    other = config_of(path, CsvConfig(split="fold", held_out_share=0.0))
    assert len(open_source(other, "train")) == 3


def sides_of(path, csv):
    """The split of each caption, in canonical form."""
    config, sides = config_of(path, csv), {}
    for split in ("train", "validation"):
        source = open_source(config, split)
        for i in range(len(source)):
            sides.setdefault(canonical(source.text(i)[0]), set()).add(split)
    return sides


def test_splits_by_content(write_table):
    """Without a column, equal captions and equal pictures stay on one side, whatever the order."""
    rows = [f"{i}.png,thing {i // 3}" for i in range(600)]
    rows += [f"x{i}.png,THING  {i}" for i in range(200)]  # the same captions
    rows += [f"{3 * i}.png,other {i}" for i in range(200)]  # the same pictures
    sides = sides_of(write_table("image,caption\n" + "\n".join(rows)), CsvConfig())
    assert len(sides) == 400
    assert all(len(side) == 1 for side in sides.values())
    assert all(sides[f"thing {i}"] == sides[f"other {i}"] for i in range(200))
    held_out = {caption for caption, side in sides.items() if side == {"validation"}}
    assert 15 < len(held_out) < 65
    # More rows at the end leave the others where they are.
    longer = write_table("image,caption\n" + "\n".join([*rows, "n.png,new"]), name="longer.csv")
    assert {c: s for c, s in sides_of(longer, CsvConfig()).items() if c != "new"} == sides
    half = sides_of(longer, CsvConfig(held_out_share=0.5))
    assert held_out < {caption for caption, side in half.items() if side == {"validation"}}


def test_splits_that_are_not_there(write_table):
    path = write_table("image,caption\n0.png,a cat\n")
    with pytest.raises(DataError, match="no row for the split 'validation'"):
        open_source(config_of(path), "validation")
    with pytest.raises(DataError, match="not 'test'"):
        open_source(config_of(path), "test")


@pytest.mark.parametrize(
    "fields,sentence",
    [
        ({"held_out_share": 1.0}, "held_out_share = 1.0"),
        ({"delimiter": ";;"}, "delimiter = ';;' has to be one character"),
        ({"keywords_separator": ""}, "keywords_separator"),
        ({"encoding": "utf-9"}, "'utf-9' is not a known encoding"),
    ],
)
def test_settings_that_cannot_be(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        CsvConfig(**fields)


def test_source_has_to_be_known():
    with pytest.raises(ConfigError, match=r"'pairs\.xls' has to be 'emoji', tfds:NAME, a folder"):
        open_source(DataConfig(source="pairs.xls"), "train")


def test_content_ids():
    assert content_ids([]) == []
    assert content_ids([("a", 1), ("b", 2), ("c", 1), ("b", 3), ("d", 3), (1, "a")]) == [
        0, 1, 0, 1, 1, 2,
    ]  # fmt: skip
    chain = [(i // 2, (i + 1) // 2) for i in range(2000)]
    assert set(content_ids(chain[::-1])) == {0}


def test_from_table_to_batches(write_table):
    rows = "".join(f"{i}.png,thing {i},old|red\n" for i in range(12))
    path = write_table(f"image,caption,keywords\n{rows}none.png,x,\n", pictures=12)
    config = config_of(path)
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source)
    loader = BatchLoader(source, config, tokenizer, batch_size=4, seed=0)
    assert loader.errors.counts == {"missing image": 1}
    seen = np.concatenate([next(loader)["example"] for _ in range(3)])
    assert sorted(seen.tolist()) == list(range(12))
    loader.close()
