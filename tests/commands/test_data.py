"""The data commands: what they print, write and refuse."""

import io
import json
import pathlib
import tarfile

import numpy as np
import pytest
from PIL import Image

from contrastive.cli import main
from contrastive.data.config import DataConfig
from contrastive.data.source_config import FieldsConfig
from contrastive.data.sources import open_source

ROOT = pathlib.Path(__file__).parents[2]


def png(seed, side=24):
    data = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side + seed, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


@pytest.fixture
def pairs(tmp_path):
    """Twenty pairs: number 4 is no picture, 5 has no caption, 7 repeats 6, one caption is long."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    rows = []
    for i in range(20):
        data = b"no picture" if i == 4 else png(6 if i == 7 else i)
        (folder / f"{i}.png").write_bytes(data)
        rows.append({"image": f"{i}.png", "caption": f"thing number {i}", "tags": ["red", "old"]})
    rows[5]["caption"] = None
    rows[7]["caption"] = "Thing  number 6"
    rows[9]["caption"] = "word " * 60
    rows[2]["content_id"] = 12
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "a.jsonl"


@pytest.fixture
def call(tmp_path, capsys):
    """``call("stats", source, ...)``: exit status, what was printed, what was complained."""

    def run(action, source, *arguments):
        status = main(
            [
                "data",
                action,
                f"--config={ROOT / 'configs/emoji.py'}:clip",
                f"--config.data.source={source}",
                f"--config.data.cache={tmp_path / 'cache'}",
                *map(str, arguments),
            ]
        )
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


ALL = "--config.data.fields.held_out_share=0"


def test_inspect_prints_what_the_data_is(call, pairs, tmp_path):
    page = tmp_path / "out" / "sheet.html"
    status, printed, _ = call("inspect", pairs, ALL, f"--output={page}", "--json")
    assert status == 0
    about = json.loads(printed)
    assert about["format"] == "jsonl"
    assert about["splits"] == {"train": 20}
    assert about["fields"] == ["image", "caption", "tags", "content_id"]
    assert (about["samples"], about["looked_at"]) == (20, 18)
    assert about["errors"] == {"decode error": 1, "empty caption": 1}
    assert set(about["microseconds"]) == {"read", "decode", "resize", "tokenize"}
    assert all(value > 0 for value in about["microseconds"].values())
    first = about["tokens"][0]
    assert first["caption"] == "thing number 0"
    assert first["text"].startswith("thing number 0 ")  # broader terms follow
    assert "publication" in first["text"]  # a number of a journal, this one sense is known
    assert len(first["ids"]) == 48
    sheet = page.read_text()
    assert sheet.count("<figure") == 18
    assert "18 of 20 samples as they reach the model" in sheet
    status, printed, _ = call("inspect", pairs, ALL, f"--output={page}")
    for words in (
        "train 20",
        "fields: image, caption, tags, content_id",
        "decode error",
        "“thing number 0”",
    ):
        assert words in printed


def test_inspect_shows_64_samples_as_they_reach_the_model(call, tmp_path):
    page = tmp_path / "sheet.html"
    status, printed, _ = call("inspect", "emoji", f"--output={page}", "--most=80")
    assert status == 0
    assert page.read_text().count("<figure") == 64
    assert "4,550" in printed


def test_stats(call, pairs, tmp_path):
    status, printed, _ = call("stats", pairs, ALL, "--json", f"--plots={tmp_path / 'plots'}")
    assert status == 0
    about = json.loads(printed)
    assert about["repeated_captions"] == 1
    assert about["repeated_pictures"] == 1
    assert about["frequent_captions"] == {"thing number 6": 2}
    assert about["truncated_captions"] == 1
    assert about["picture_formats"] == {"png": 18}
    assert about["width"]["least"] == 24
    assert about["width"]["most"] == 43
    assert about["height"]["median"] == 24
    assert about["caption_characters"]["most"] == 299
    assert about["caption_tokens"]["most"] == 48
    with Image.open(about["plot"]) as plot:
        assert plot.width > 500
    status, printed, _ = call("stats", pairs, ALL, "--most=4")
    assert status == 0
    assert "3 of 20 samples" in printed or "4 of 20 samples" in printed


@pytest.mark.parametrize("target,files", [("webdataset", 3), ("array_record", 3)])
def test_convert_keeps_everything(call, pairs, tmp_path, target, files):
    out = tmp_path / "out"
    status, printed, _ = call(
        "convert", pairs, ALL, f"--to={target}", f"--output={out}", "--shard-size=8"
    )
    assert status == 0
    assert (
        "20 samples of the split train read (--split: another). Left out: 1 empty caption."
        in printed
    )
    pattern = printed.split("--config.data.source='")[1].split("'")[0]
    assert len(list(out.iterdir())) == files
    before = open_source(
        DataConfig(source=str(pairs), fields=FieldsConfig(held_out_share=0.0)), "train"
    )
    after = open_source(DataConfig(source=pattern, cache=str(tmp_path / "cache")), "train")
    kept = [i for i in range(20) if i != 5]
    assert len(after) == len(kept)
    for i, j in enumerate(kept):
        old, new = before[j], after[i]
        assert {**new, "key": ""} == {**old, "key": ""}
        assert new["key"] == old["key"]
    assert after[2]["id"] == 12
    status, _, complaint = call("convert", pairs, ALL, f"--to={target}", f"--output={out}")
    assert status == 2
    assert "holds files of the split 'train' already" in complaint


def test_index(call, tmp_path):
    for number in range(2):
        with tarfile.open(tmp_path / f"a-{number}.tar", "w") as tar:
            for i in range(3):
                for suffix, data in ((".png", png(i)), (".txt", b"a cat")):
                    if (number, i, suffix) == (1, 2, ".png"):
                        continue
                    info = tarfile.TarInfo(f"{i}{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    status, printed, _ = call("index", tmp_path / "a-{0..1}.tar", "--workers=1")
    assert status == 0
    assert "5 samples in 2 tars; faults: 1 no image" in printed
    assert len(list((tmp_path / "cache").glob("webdataset-*/samples.bin"))) == 1
    status, _, complaint = call("index", "emoji")
    assert status == 2
    assert "emoji, which needs no index" in complaint


def test_a_split_that_cannot_be_opened_is_told(call, pairs, tmp_path):
    """One that is not there is no fault; one that is damaged is."""
    source = pairs.parent / "{split}.jsonl"
    (pairs.parent / "train.jsonl").write_bytes(pairs.read_bytes())
    page = f"--output={tmp_path / 'x.html'}"
    status, printed, _ = call("inspect", source, page, "--json")
    assert (status, json.loads(printed)["splits"]) == (0, {"train": 20})
    (pairs.parent / "test.jsonl").write_text("{}\n")
    status, _, complaint = call("inspect", source, page, "--json")
    assert status == 2
    assert "test.jsonl" in complaint
    with tarfile.open(tmp_path / "train-0.tar", "w") as tar:
        for suffix, data in ((".png", png(0)), (".txt", b"a cat")):
            info = tarfile.TarInfo(f"0{suffix}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    status, printed, _ = call("index", tmp_path / "{split}-0.tar", "--workers=1")
    assert status == 0
    assert "validation-0.tar: there are none." in printed
    (tmp_path / "test-0.tar").write_bytes(b"no tar")
    status, _, complaint = call("index", tmp_path / "{split}-0.tar", "--workers=1")
    assert status == 2
    assert "test-0.tar" in complaint


@pytest.mark.parametrize("action", ["inspect", "stats"])
def test_nothing_usable_is_one_sentence(call, tmp_path, action):
    status, _, complaint = call(action, tmp_path / "gone.jsonl")
    assert status == 2
    assert complaint.count("\n") == 1
    assert "gone.jsonl" in complaint


def test_no_usable_sample(call, pairs, tmp_path):
    for path in pairs.parent.glob("*.png"):
        path.write_bytes(b"x")
    status, _, complaint = call("inspect", pairs, ALL, f"--output={tmp_path / 'x.html'}")
    assert status == 2
    assert "None of 20 samples can be used: 19 decode error, 1 empty caption" in complaint


def test_settings_without_effect_are_refused(call, pairs):
    for arguments, words in (
        (["--shard-size=0", "--to=webdataset", "--output=x"], "--shard-size=0"),
        (["--to=webdataset", "--output=x", "--mostt=3"], "--mostt"),
    ):
        status, _, complaint = call("convert", pairs, ALL, *arguments)
        assert status == 2
        assert words in complaint


PLAIN = """
from ml_collections import ConfigDict

def get_config(_=""):
    config = ConfigDict({"name": "other pairs", "total_steps": 1, "batch_size": 8})
    config.data = ConfigDict({"text_length": 8})
    return config
"""


@pytest.fixture
def call_plain(tmp_path, capsys):
    """:func:`call` with a recipe that sets nothing."""
    recipe = tmp_path / "plain.py"
    recipe.write_text(PLAIN)

    def run(*arguments):
        first, *more = map(str, arguments)
        status = main([*first.split(), f"--config={recipe}", *more])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def test_pairs_of_texts(call_plain, tmp_path):
    rows = [
        {"query": f"question {i // 2}", "positive": f"answer {i}", "negatives": ["no"]}
        for i in range(10)
    ]
    rows[3]["query"] = ""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f"--config.data.source={tmp_path / 'a.jsonl'}", "--config.data.pairs=texts", ALL]
    status, printed, _ = call_plain("data inspect", *settings, "--json")
    assert status == 0
    about = json.loads(printed)
    assert about["errors"] == {"empty query": 1}
    assert about["tokens"][0]["text"] == "answer 0"
    assert (about["repeated_captions"], about["repeated_pictures"]) == (0, 4)
    assert about["sheet"] is None
    status, printed, _ = call_plain("data stats", *settings)
    assert status == 0
    assert "repeated: 0 captions, 4 queries" in printed
    status, _, error = call_plain("data convert", *settings, "--to=webdataset", "--output=x")
    assert status == 2
    assert "tars hold no pairs of texts" in error
    out = tmp_path / "out"
    status, printed, _ = call_plain(
        "data convert", *settings, "--to=array_record", f"--output={out}", "--shard-size=4"
    )
    assert status == 0
    assert (
        "10 samples of the split train read (--split: another). Left out: 1 empty query." in printed
    )
    pattern = printed.split("--config.data.source='")[1].split("'")[0]
    before, after = (
        open_source(DataConfig(source=source, pairs="texts", fields=no_held_out), "train")
        for source, no_held_out in (
            (str(tmp_path / "a.jsonl"), FieldsConfig(held_out_share=0.0)),
            (pattern, FieldsConfig()),
        )
    )
    assert [after[i] for i in range(9)] == [before[i] for i in range(10) if i != 3]


@pytest.mark.parametrize("target", ["webdataset", "array_record"])
def test_convert_of_views_keeps_pictures(call_plain, pairs, tmp_path, target):
    settings = ["--config.data.pairs=views", ALL, f"--to={target}", f"--output={tmp_path / 'out'}"]
    status, printed, _ = call_plain("data convert", f"--config.data.source={pairs}", *settings)
    assert (status, "20 samples of the split train read (" in printed) == (0, True)
    pattern = printed.split("--config.data.source='")[1].split("'")[0]
    before, after = (
        open_source(DataConfig(source=source, pairs="views", fields=fields, **cache), "train")
        for source, fields, cache in (
            (str(pairs), FieldsConfig(held_out_share=0.0), {}),
            (pattern, FieldsConfig(), {"cache": str(tmp_path / "cache")}),
        )
    )
    for name in ("image", "id", "key"):
        assert [after[i][name] for i in range(20)] == [before[i][name] for i in range(20)]


def test_views_are_shown_beside_each_other(call_plain, pairs, tmp_path):
    page = tmp_path / "sheet.html"
    settings = [f"--config.data.source={pairs}", "--config.data.pairs=views", ALL]
    settings += ["--config.data.stack.name=simclr", f"--output={page}", "--json"]
    status, printed, _ = call_plain("data inspect", *settings)
    assert status == 0
    assert json.loads(printed)["errors"] == {"decode error": 1}
    assert page.read_text().count("<figure") == 2 * 19
