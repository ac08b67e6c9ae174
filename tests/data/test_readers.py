"""Every format gives the same records; what is wrong is named, counted or one sentence."""

import gzip
import io
import json
import logging
import pathlib
import struct
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from array_record.python import array_record_module
from PIL import Image

from contrastive.data import files, tar_index
from contrastive.data.config import DataConfig
from contrastive.data.example_source import make_example
from contrastive.data.examples import read_evaluation_pairs, read_examples
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.records import IndexedSource, SampleError, TextSource
from contrastive.data.source_config import CsvConfig, FieldsConfig
from contrastive.data.sources import open_source
from contrastive.data.tokenizer import texts
from contrastive.errors import ConfigError, DataError, StorageError

ALL = FieldsConfig(held_out_share=0.0)


def write_tar(path, members):
    """A tar of (name, bytes) in this order; a name given as bytes keeps its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in members:
            name = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def sample(picture, i, image="png", text="txt"):
    return [(f"{i:04}.{image}", picture(i)), (f"{i:04}.{text}", f"thing number {i}".encode())]


def write_jsonl(path, rows):
    lines = (json.dumps(row).encode() if isinstance(row, dict) else row for row in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def write_parquet(path, rows, group=3, metadata=None):
    table = pa.Table.from_pylist(rows)
    if metadata:
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path, row_group_size=group)
    return path


def write_arrow(path, rows):
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return path


def write_array_record(path, rows):
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for row in rows:
        writer.write(make_example(row))
    writer.close()
    return path


def write_tfrecord(path, rows):
    payloads = map(make_example, rows)
    path.write_bytes(b"".join(struct.pack("<QI", len(p), 0) + p + bytes(4) for p in payloads))
    return path


def good_rows(picture, n=8):
    return [{"image": picture(i), "caption": f"thing number {i}"} for i in range(n)]


def make_webdataset(folder, picture, n=8):
    write_tar(folder / "a-000.tar", [m for i in range(3) for m in sample(picture, i)])
    write_tar(folder / "a-001.tar", [m for i in range(3, n) for m in sample(picture, i)])
    return folder / "a-{000..001}.tar"


def make_jsonl(folder, picture, n=8):
    for i in range(n):
        (folder / f"{i}.png").write_bytes(picture(i))
    rows = [{"image": f"{i}.png", "caption": f"thing number {i}"} for i in range(n)]
    return write_jsonl(folder / "a.jsonl", rows)


def make_parquet(folder, picture):
    return write_parquet(folder / "a.parquet", good_rows(picture))


def make_huggingface(folder, picture):
    rows = [
        {"image": {"bytes": row["image"], "path": None}, "text": row["caption"]}
        for row in good_rows(picture)
    ]
    (folder / "data").mkdir()
    write_parquet(folder / "data" / "train-00000-of-00002.parquet", rows[:4])
    write_parquet(folder / "data" / "train-00001-of-00002.parquet", rows[4:])
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", rows[:1])
    return folder


def make_arrow(folder, picture):
    return write_arrow(folder / "data-00000-of-00001.arrow", good_rows(picture))


def make_array_record(folder, picture):
    rows = good_rows(picture)
    rows = [row | {"caption": row["caption"].encode()} for row in rows]
    write_array_record(folder / "a.array_record-00000-of-00002", rows[:5])
    write_array_record(folder / "a.array_record-00001-of-00002", rows[5:])
    return folder / "a.array_record-*-of-00002"


def make_tfrecord(folder, picture):
    rows = [row | {"caption": row["caption"].encode()} for row in good_rows(picture)]
    write_tfrecord(folder / "a.tfrecord-00000-of-00002", rows[:5])
    write_tfrecord(folder / "a.tfrecord-00001-of-00002", rows[5:])
    return folder


def make_folder(folder, picture):
    (folder / "pictures" / "x").mkdir(parents=True)
    for i in range(8):
        (folder / "pictures" / "x" / f"{i}.png").write_bytes(picture(i))
        (folder / "pictures" / "x" / f"{i}.txt").write_text(f"thing number {i}\n")
    return folder / "pictures"


MAKERS = {
    "webdataset": make_webdataset,
    "jsonl": make_jsonl,
    "parquet": make_parquet,
    "huggingface": make_huggingface,
    "arrow": make_arrow,
    "array_record": make_array_record,
    "tfrecord": make_tfrecord,
    "image_folder": make_folder,
}


@pytest.fixture(params=MAKERS)
def eight(request, tmp_path, picture):
    """A source of eight pairs in some format."""
    return MAKERS[request.param](tmp_path, picture)


def test_every_format_gives_the_same_records(eight, config_of, picture):
    source = open_source(config_of(eight), "train")
    assert isinstance(source, IndexedSource)
    records = [source[i] for i in range(len(source))]
    assert [r["image"] for r in records] == [picture(i) for i in range(8)]
    assert [r["caption"] for r in records] == [f"thing number {i}" for i in range(8)]
    assert all(r["keywords"] == [] and r["id"] == -1 for r in records)
    assert len({r["key"] for r in records}) == 8
    assert list(texts(source)) == [r["caption"] for r in records]
    if isinstance(source, TextSource):
        assert source.text(5) == ("thing number 5", [])
    again = open_source(config_of(eight), "train")
    assert isinstance(again, IndexedSource)
    assert again.fingerprint == source.fingerprint
    with pytest.raises(IndexError):
        source[8]


def test_every_format_reaches_batches(eight, config_of):
    config = config_of(eight)
    source = open_source(config, "train")
    loader = BatchLoader(source, config, load_tokenizer(config, source), batch_size=4, seed=0)
    seen = np.concatenate([next(loader)["example"] for _ in range(2)])
    assert sorted(seen.tolist()) == list(range(8))
    loader.close()


def test_every_format_has_a_validation_split(tmp_path, picture, config_of):
    for name, make in MAKERS.items():
        folder = tmp_path / name
        folder.mkdir()
        config = config_of(make(folder, picture), FieldsConfig(held_out_share=0.5))
        if name == "huggingface":  # its files name the splits
            assert len(open_source(config, "train")) == 8
            assert len(open_source(config, "test")) == 1
            with pytest.raises(DataError, match="no files of the split 'validation'"):
                open_source(config, "validation")
            continue
        sides = [open_source(config, split) for split in ("train", "validation")]
        captions = [{side[i]["caption"] for i in range(len(side))} for side in sides]
        assert captions[0] | captions[1] == {f"thing number {i}" for i in range(8)}
        assert not captions[0] & captions[1]
        with pytest.raises(DataError, match="not 'test'"):
            open_source(config, "test")


def test_split_in_the_name_of_the_source(tmp_path, picture, config_of):
    for name, make in MAKERS.items():
        for split in ("train", "validation"):
            folder = tmp_path / name / split
            folder.mkdir(parents=True)
            pattern = str(make(folder, picture)).replace("/train", "/{split}")
            pattern = pattern.replace("/validation", "/{split}")
        config = config_of(pattern, FieldsConfig(held_out_share=0.5))
        if name != "huggingface":
            assert [len(open_source(config, s)) for s in ("train", "validation")] == [8, 8]
            with pytest.raises(DataError):
                open_source(config, "test")


def broken(picture):
    return picture(5)[: len(picture(5)) // 2]


def spoil_webdataset(folder, picture):
    members = [m for i in range(10) for m in sample(picture, i)]
    members[10] = (members[10][0], broken(picture))
    return write_tar(folder / "a.tar", members), "a.tar/0005"


def spoil_rows(folder, picture, write, name, text=lambda caption: caption):
    rows = [row | {"caption": text(row["caption"])} for row in good_rows(picture, 10)]
    rows[5]["image"] = broken(picture)
    return write(folder / name, rows), f"{name} ("


def spoil_jsonl(folder, picture):
    path = make_jsonl(folder, picture, 10)
    (folder / "5.png").write_bytes(broken(picture))
    return path, "a.jsonl (line 6)"


def spoil_folder(folder, picture):
    path = make_folder(folder, picture)
    for i in (8, 9):
        (path / "x" / f"{i}.png").write_bytes(picture(i))
        (path / "x" / f"{i}.txt").write_text(f"thing number {i}\n")
    (path / "x" / "5.png").write_bytes(broken(picture))
    return path, "x/5.png"


SPOILERS = {
    "webdataset": spoil_webdataset,
    "jsonl": spoil_jsonl,
    "parquet": lambda f, p: spoil_rows(f, p, write_parquet, "a.parquet"),
    "arrow": lambda f, p: spoil_rows(f, p, write_arrow, "a.arrow"),
    "array_record": lambda f, p: spoil_rows(f, p, write_array_record, "a.array_record", str.encode),
    "image_folder": spoil_folder,
}


@pytest.mark.parametrize("format_", SPOILERS)
@pytest.mark.parametrize("check", ["before", "during"])
def test_B01_corrupt_image_skips_one_sample_and_is_counted(
    tmp_path, picture, config_of, format_, check
):
    source, key = SPOILERS[format_](tmp_path, picture)
    config = config_of(source, check=check, max_bad_share=0.2)
    opened = open_source(config, "train")
    log = tmp_path / "data_errors.jsonl"
    size = 3 if check == "before" else 5
    loader = BatchLoader(
        opened, config, load_tokenizer(config, opened), batch_size=size, seed=0, error_log=log
    )
    batches = [next(loader) for _ in range(loader.steps_per_epoch)]
    loader.close()
    seen = np.concatenate([b["example"][b.get("weight", np.ones(size)) > 0] for b in batches])
    assert sorted(seen.tolist()) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert loader.errors.counts == {"decode error": 1}
    (entry,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert entry["index"] == 5
    assert entry["key"].startswith(key)


def ten(picture):
    return [m for i in range(10) for m in sample(picture, i)]


def test_B02_truncated_archive_loses_its_last_sample_only(tmp_path, picture, config_of, caplog):
    whole = write_tar(tmp_path / "b-1.tar", ten(picture))
    data = whole.read_bytes()
    with tarfile.open(whole) as tar:
        starts = {m.name: m for m in tar.getmembers()}
    cuts = {
        "image": starts["0007.png"].offset_data + 700,
        "first header": starts["0007.png"].offset + 100,
        "between": starts["0007.txt"].offset,  # the image is whole, its caption gone
        "header": starts["0007.txt"].offset + 100,
        "caption": starts["0007.txt"].offset_data + 3,
    }
    for name, cut in cuts.items():
        folder = tmp_path / name
        write_tar(folder / "b-1.tar", ten(picture))
        (folder / "b-0.tar").write_bytes(data[:cut])
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            source = open_source(config_of(folder / "b-{0..1}.tar"), "train")
        captions = [source[i]["caption"] for i in range(len(source))]
        assert captions == [f"thing number {i}" for i in [*range(7), *range(10)]], name
        assert isinstance(source, IndexedSource)
        assert len(source.errors) == 1
        torn = "what follows 0006" if name == "first header" else "0007"
        assert source.errors.entries[0]["key"] == f"b-0.tar/{torn}"
        warnings = [r.getMessage() for r in caplog.records]
        if name != "between":  # such a tar is only without its end mark
            assert len(warnings) == 1
            assert "b-0.tar: the archive is cut short" in warnings[0]
        config = config_of(folder / "b-{0..1}.tar")
        found = read_examples(source, config)
        assert len(found) == 17
        assert len(found.errors) == 1


def test_B02_zeros_inside_an_archive_are_not_its_end(tmp_path, picture, config_of, caplog):
    path = write_tar(tmp_path / "a.tar", ten(picture))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        at = tar.getmember("0004.png").offset
    data[at : at + 512] = bytes(512)
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        source = open_source(config_of(path), "train")
    assert len(source) == 4
    assert isinstance(source, IndexedSource)
    assert source.errors.counts == {"truncated archive": 1}
    assert "zeros stand where a header should be" in caplog.text


def test_B02_a_tar_that_changes_later_is_noticed(tmp_path, picture, config_of):
    path = write_tar(tmp_path / "a.tar", ten(picture))
    source = open_source(config_of(path), "train")
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(SampleError, match="archive changed: the archive ends before the sample"):
        source[9]
    write_tar(path, ten(picture)[5:])
    with pytest.raises(SampleError, match="archive changed"):
        source[2]
    assert len(open_source(config_of(path), "train")) == 7  # the new tar has its own index


@pytest.mark.parametrize("make", [make_webdataset, make_tfrecord])
def test_a_file_that_is_gone_is_no_bad_sample(tmp_path, picture, config_of, make):
    """A supervisor tries again until it is back; see also tests/faults/test_storage.py."""
    config = config_of(make(tmp_path, picture))
    source = open_source(config, "train")
    gone = sorted(tmp_path.glob("a*"))[0]
    gone.rename(tmp_path / "away")
    with pytest.raises(StorageError, match="Put it back") as caught:
        read_examples(source, config)
    assert caught.value.status == 74
    (tmp_path / "away").rename(gone)
    assert len(read_examples(source, config)) == len(source)


def test_B03_members_that_repeat_or_are_not_adjacent(tmp_path, picture, config_of, caplog):
    members = [
        ("0001.png", picture(1)), ("0001.txt", b"one"), ("0002.txt", b"two"), ("0001.json", b"{}"),
        ("0003.png", picture(3)), ("0003.png", picture(4)), ("0003.txt", b"three"),
    ]  # fmt: skip
    path = write_tar(tmp_path / "a.tar", members)
    with caplog.at_level(logging.WARNING):
        source = open_source(config_of(path), "train")
    assert [source[i]["caption"] for i in range(len(source))] == ["one", "three"]
    assert source[1]["image"] == picture(3)
    assert isinstance(source, IndexedSource)
    assert source.errors.entries == [
        {"index": -1, "key": "a.tar/0002", "reason": "no image", "detail": "it has txt"}
    ]
    notes = [record.getMessage() for record in caplog.records]
    assert len(notes) == 2
    assert "0001.json comes after its sample and is ignored" in notes[0]
    assert "0003.png is there twice; the first counts" in notes[1]
    found = read_examples(source, config_of(path, max_bad_share=0.4))
    assert found.errors.counts == {"no image": 1}
    with pytest.raises(DataError, match=r"1 of 3 samples \(33\.3%\).*no image"):
        read_examples(source, config_of(path, max_bad_share=0.3))


def test_B03_a_late_member_does_not_tear_the_sample_that_it_lands_in(tmp_path, picture, config_of):
    members = [("0001.png", picture(1)), ("0000.txt", b"x"), ("0001.txt", b"one")]
    path = write_tar(tmp_path / "a.tar", [*sample(picture, 0), *members])
    source = open_source(config_of(path), "train")
    assert [source[i]["caption"] for i in range(len(source))] == ["thing number 0", "one"]


@pytest.mark.parametrize(
    "name,parts",
    [
        ("train.v1/0001.left.jpg", ("train.v1/0001", "left.jpg")),
        ("x/22.0/1.1.png", ("x/22.0/1", "1.png")),
        ("img 2.0 final.jpg", ("img 2", "0 final.jpg")),
        ("0001.JPG", ("0001", "jpg")),
        ("./a/0001.Jpg", ("a/0001", "jpg")),
        ("readme", None),
        ("a/._0001.jpg", None),
        ("a.b/readme", None),
    ],
)
def test_B04_keys_with_dots_and_upper_case_extensions(name, parts):
    assert tar_index.split_name(name) == parts


def test_B04_a_dot_in_the_base_name_is_hinted_at_once(tmp_path, picture, config_of, caplog):
    members = sample(picture, 0, "PNG", "TXT")
    for i in (2, 3):
        members += [(f"img {i}.0 final.png", picture(i)), (f"img {i}.0 final.txt", b"a")]
    path = write_tar(tmp_path / "a.tar", members)
    with caplog.at_level(logging.WARNING):
        source = open_source(config_of(path), "train")
    assert [source[i]["caption"] for i in range(len(source))] == ["thing number 0"]
    (note,) = [record.getMessage() for record in caplog.records]
    assert "img 2.0 final.png: the base name has a dot" in note


def test_B05_no_usable_sample_is_an_error_that_names_the_fields(tmp_path, picture, config_of):
    odd = [m for i in range(3) for m in sample(picture, i, "input.jpg", "outputs.txt")]
    path = write_tar(tmp_path / "a.tar", odd)
    with pytest.raises(DataError, match=r"no field for the image.*'input\.jpg', 'outputs\.txt'"):
        open_source(config_of(path), "train")
    mapped = FieldsConfig(image="input.jpg", caption="outputs.txt", held_out_share=0.0)
    assert len(open_source(config_of(path, mapped), "train")) == 3
    with pytest.raises(DataError, match=r"no field 'left\.jpg' \(config\.data\.fields\.image\)"):
        open_source(config_of(path, FieldsConfig(image="left.jpg")), "train")
    for image in ("jpeg", "png", "webp"):
        path = write_tar(tmp_path / f"{image}.tar", sample(picture, 0, image))
        assert len(open_source(config_of(path), "train")) == 1
    mixed = sample(picture, 0, "jpeg") + sample(picture, 1, "webp") + sample(picture, 2, "png")
    path = write_tar(tmp_path / "mixed.tar", mixed)
    assert len(open_source(config_of(path), "train")) == 3
    halves = [
        m for i in range(3) for m in (sample(picture, 2 * i)[0], sample(picture, 2 * i + 1)[1])
    ]
    path = write_tar(tmp_path / "halves.tar", halves)
    with pytest.raises(DataError, match="no sample that can be used: 3 no caption, 3 no image"):
        open_source(config_of(path), "train")


@pytest.mark.parametrize("write,name", [(write_jsonl, "a.jsonl"), (write_parquet, "a.parquet")])
def test_B05_fields_of_rows(tmp_path, config_of, write, name):
    path = write(tmp_path / name, [{"input": "0.png", "output": "a"}])
    with pytest.raises(
        DataError, match=r"no field for the image.*'input', 'output'.*fields\.image"
    ):
        open_source(config_of(path), "train")
    with pytest.raises(DataError, match=r"no field for the caption.*fields\.caption"):
        open_source(config_of(path, FieldsConfig(image="input")), "train")
    mapped = FieldsConfig(image="input", caption="output", held_out_share=0.0)
    source = open_source(config_of(path, mapped), "train")
    assert source.text(0) == ("a", [])
    with pytest.raises(SampleError, match=r"missing image: there is no file 0\.png"):
        source[0]


def odd_pictures():
    """B06, B07 and B11 in one: (encoded, expected first pixel)."""

    def encode(image, kind="PNG", **options):
        data = io.BytesIO()
        image.save(data, kind, **options)
        return data.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.new("RGB", (40, 20), (255, 0, 0))
    turned.paste((0, 0, 255), (20, 0, 40, 20))
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    return [
        (encode(turned, exif=exif), (255, 0, 0)),
        (encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), (255, 0, 0)),
        (encode(Image.new("LA", (4, 4), (100, 0))), (255, 255, 255)),
        (encode(Image.new("1", (4, 4), 1)), (255, 255, 255)),
        (encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), (255, 0, 0)),
        (encode(Image.new("RGB", (1, 5000), (9, 9, 9))), (9, 9, 9)),
        (encode(Image.new("RGB", (5000, 1), (9, 9, 9))), (9, 9, 9)),
        (encode(Image.new("RGB", (1, 1), (9, 9, 9))), (9, 9, 9)),
    ]


def rows_of(pictures):
    return [{"image": data, "caption": f"thing {i}"} for i, (data, _) in enumerate(pictures)]


def odd_webdataset(folder, pictures):
    members = []
    for i, (data, _) in enumerate(pictures):
        members += [(f"{i}.png", data), (f"{i}.txt", f"thing {i}".encode())]
    return write_tar(folder / "a.tar", members)


def odd_array_record(folder, pictures):
    rows = [row | {"caption": row["caption"].encode()} for row in rows_of(pictures)]
    return write_array_record(folder / "a.array_record", rows)


@pytest.mark.parametrize(
    "make",
    [
        odd_webdataset,
        odd_array_record,
        lambda folder, pictures: write_parquet(folder / "a.parquet", rows_of(pictures)),
        lambda folder, pictures: write_arrow(folder / "a.arrow", rows_of(pictures)),
    ],
    ids=["webdataset", "array_record", "parquet", "arrow"],
)
def test_B06_B07_B11_odd_pictures_through_every_reader(tmp_path, config_of, make):
    pictures = odd_pictures()
    config = config_of(make(tmp_path, pictures))
    pairs = read_evaluation_pairs(open_source(config, "train"), config)
    assert len(pairs.errors) == 0
    for pixels, (_, expected) in zip(pairs.images, pictures, strict=True):
        assert pixels.shape == (8, 8, 3)
        assert pixels[0, 0].tolist() == pytest.approx(expected, abs=1)
    assert pairs.images[0][7, 0].tolist() == [0, 0, 255]  # upright: blue is below


def empties_jsonl(folder, picture):
    (folder / "0.png").write_bytes(picture(0))
    rows = [{"image": "0.png", "caption": c} for c in ("a cat", "", "   ", None)]
    return write_jsonl(folder / "a.jsonl", [*rows, {"image": "0.png"}])


def empties_rows(write, name):
    def make(folder, picture):
        rows = [{"image": picture(i), "caption": c} for i, c in enumerate(("a cat", "", "  "))]
        return write(folder / name, [*rows, {"image": picture(5), "caption": None}] * 1)

    return make


def empties_webdataset(folder, picture):
    members = []
    for i, caption in enumerate((b"a cat", b"", b"  \n", b"\xef\xbb\xbf")):
        members += [(f"{i}.png", picture(i)), (f"{i}.txt", caption)]
    return write_tar(folder / "a.tar", [*members, ("9.png", picture(9))])


def empties_json_in_tar(folder, picture):
    members = []
    for i, row in enumerate(({"caption": "a cat"}, {"caption": ""}, {"caption": None}, {})):
        members += [(f"{i}.png", picture(i)), (f"{i}.json", json.dumps(row).encode())]
    return write_tar(folder / "a.tar", members)


def empties_array_record(folder, picture):
    rows = [{"image": picture(i), "caption": c} for i, c in enumerate((b"a cat", b"", b"  "))]
    return write_array_record(folder / "a.array_record", [*rows, {"image": picture(5)}])


def empties_folder(folder, picture):
    for i, caption in enumerate(("a cat", "", " \n", None)):
        (folder / f"{i}.png").write_bytes(picture(i))
        if caption is not None:
            (folder / f"{i}.txt").write_text(caption)
    return folder


@pytest.mark.parametrize(
    "make,count",
    [
        (empties_jsonl, 4),
        (empties_rows(write_parquet, "a.parquet"), 3),
        (empties_rows(write_arrow, "a.arrow"), 3),
        (empties_webdataset, 3),
        (empties_json_in_tar, 3),
        (empties_array_record, 3),
        (empties_folder, 3),
    ],
    ids=["jsonl", "parquet", "arrow", "webdataset", "json-in-tar", "array_record", "image_folder"],
)
def test_B19_empty_captions_are_skipped_and_counted(tmp_path, picture, config_of, make, count):
    config = config_of(make(tmp_path, picture), max_bad_share=0.9)
    found = read_examples(open_source(config, "train"), config)
    assert found.captions == ["a cat"]
    assert found.errors.counts.pop("empty caption") == count
    assert set(found.errors.counts) <= {"empty caption", "no caption"}


LATIN = b"caf\xe9"


def latin_jsonl(folder, picture):
    (folder / "0.png").write_bytes(picture(0))
    rows = [b'{"image": "0.png", "caption": "' + text + b'"}' for text in (LATIN, b"tea")]
    return write_jsonl(folder / "a.jsonl", rows)


def latin_webdataset(folder, picture):
    names = (b"0", b"it\x92s")
    members = []
    for name, text in zip(names, (LATIN, b"\xef\xbb\xbftea"), strict=True):
        members += [(name + b".png", picture(0)), (name + b".txt", text)]
    return write_tar(folder / "a.tar", members)


def latin_parquet(folder, picture):
    rows = [{"image": picture(0), "caption": LATIN}, {"image": picture(1), "caption": b"tea"}]
    table = pa.Table.from_pylist(rows)
    column = pa.Array.from_buffers(  # text columns are not checked when they are written
        pa.string(), 2, table.column("caption").chunk(0).buffers()
    )
    table = pa.table({"image": table.column("image"), "caption": column})
    pq.write_table(table, folder / "a.parquet")
    return folder / "a.parquet"


def latin_array_record(folder, picture):
    rows = [{"image": picture(0), "caption": text} for text in (LATIN, b"tea")]
    return write_array_record(folder / "a.array_record", rows)


def latin_folder(folder, picture):
    for i, text in enumerate((LATIN, b"\xef\xbb\xbftea")):
        (folder / f"{i}.png").write_bytes(picture(i))
        (folder / f"{i}.txt").write_bytes(text)
    return folder


@pytest.mark.parametrize(
    "make",
    [latin_jsonl, latin_webdataset, latin_parquet, latin_array_record, latin_folder],
    ids=["jsonl", "webdataset", "parquet", "array_record", "image_folder"],
)
def test_B20_captions_that_are_not_utf8(tmp_path, picture, config_of, make):
    path = make(tmp_path, picture)
    config = config_of(path, max_bad_share=0.5)
    found = read_examples(open_source(config, "train"), config)
    assert found.captions == ["tea"]  # without its byte-order mark, too
    assert found.errors.counts == {"text is not utf-8": 1}
    replace = FieldsConfig(held_out_share=0.0, undecodable="replace")
    source = open_source(config_of(path, replace), "train")
    assert source[0]["caption"] == "caf\N{REPLACEMENT CHARACTER}"


def test_B20_odd_file_names_are_shown(tmp_path, picture, config_of):
    source = open_source(config_of(latin_webdataset(tmp_path, picture)), "train")
    assert source[1]["key"] == "a.tar/it\udc92s"
    members = [(b"x\x92.txt", b"no picture"), *sample(picture, 0)]
    source = open_source(config_of(write_tar(tmp_path / "b.tar", members)), "train")
    assert isinstance(source, IndexedSource)
    assert source.errors.entries[0]["key"] == "b.tar/x\\x92"


def test_B23_missing_shards_are_reported_by_name(tmp_path, picture, config_of):
    for i in (0, 1, 2, 4):
        write_tar(tmp_path / f"a-{i:03}.tar", sample(picture, i))
    with pytest.raises(DataError, match=r"1 of the files that it names.*a-003\.tar"):
        open_source(config_of(tmp_path / "a-{000..004}.tar"), "train")
    for pattern in ("none-*.tar", "gone.tar", "gone.jsonl", "gone.parquet", "x.array_record"):
        with pytest.raises(DataError, match=pattern.replace("*", r"\*")):
            open_source(config_of(tmp_path / pattern), "train")


def test_B23_an_empty_archive_gives_one_warning(tmp_path, picture, config_of, caplog):
    write_tar(tmp_path / "a-0.tar", [])
    write_tar(tmp_path / "a-1.tar", sample(picture, 1))
    with caplog.at_level(logging.WARNING):
        assert len(open_source(config_of(tmp_path / "a-{0..1}.tar"), "train")) == 1
    assert [r.getMessage().rpartition("/")[2] for r in caplog.records] == [
        "a-0.tar: it holds no samples"
    ]
    with pytest.raises(DataError, match="none of the 1 tars holds any sample"):
        open_source(config_of(tmp_path / "a-0.tar"), "train")
    (tmp_path / "zero.tar").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 tars"):
        open_source(config_of(tmp_path / "zero.tar"), "train")


@pytest.mark.parametrize("check", ["before", "during"])
def test_B23_fewer_shards_than_readers(tmp_path, picture, config_of, check):
    """Work is cut by sample: two shards feed six readers, and each sample comes once."""
    for i in range(2):
        members = [m for k in range(6) for m in sample(picture, 6 * i + k)]
        write_tar(tmp_path / f"a-{i}.tar", members)
    config = config_of(tmp_path / "a-{0..1}.tar", check=check, threads=3)
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source)
    seen = []
    for i in range(6):
        loader = BatchLoader(
            source, config, tokenizer, batch_size=6, seed=0, process_index=i, process_count=6
        )
        assert loader.steps_per_epoch == 2
        seen += [int(x) for _ in range(2) for x in next(loader)["example"]]
        loader.close()
    assert sorted(seen) == list(range(12))


def test_tar_forms(tmp_path, picture, config_of):
    """GNU and POSIX long names, a folder, a link; base-256 sizes; no end mark."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        path = tmp_path / f"{form}.tar"
        stem = "a/" + "long" * (20 if form == tarfile.USTAR_FORMAT else 60)
        stem = stem if form == tarfile.USTAR_FORMAT else stem + "ü"
        with tarfile.open(path, "w", format=form) as tar:
            folder = tarfile.TarInfo("a")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            link = tarfile.TarInfo("a/x.png")
            link.type, link.linkname = tarfile.SYMTYPE, "y.png"
            tar.addfile(link)
            for suffix, data in ((".png", picture(0)), (".txt", b"a cat")):
                info = tarfile.TarInfo(stem + suffix)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        data = path.read_bytes().rstrip(b"\0")
        path.write_bytes(data + bytes(-len(data) % 512))
        with open(path, "rb") as file:
            found = [m.name for m in tar_index.read_members(file, path.stat().st_size)]
        assert found == [stem + ".png", stem + ".txt"]
        source = open_source(config_of(path), "train")
        assert source[0]["image"] == picture(0)
        assert source[0]["caption"] == "a cat"
    block = bytearray(tarfile.TarInfo("a.png").tobuf())
    block[124:136] = b"\x80" + (9 << 30).to_bytes(11, "big")
    header = tar_index.parse_header(bytes(block))
    assert header is not None
    assert header.size == 9 << 30


def test_random_damage_to_tars_never_raises_anything_else(tmp_path, picture):
    rng = np.random.default_rng(0)
    whole = write_tar(tmp_path / "a.tar", ten(picture)).read_bytes()
    slots = (tar_index.Slot("image", ("png",), True), tar_index.Slot("caption", ("txt",), True))
    for _ in range(200):
        data = bytearray(whole[: rng.integers(1, len(whole))])
        for at in rng.integers(0, len(data), 40):
            data[at] = rng.integers(0, 256)
        (tmp_path / "b.tar").write_bytes(data)
        tar_index.index_shard(str(tmp_path / "b.tar"), slots)


def test_compressed_and_other_files_are_one_sentence(tmp_path, picture, config_of, caplog):
    data = write_tar(tmp_path / "a.tar", ten(picture)).read_bytes()
    (tmp_path / "z.tar").write_bytes(gzip.compress(data))
    (tmp_path / "text.tar").write_bytes(b"no tar at all" * 100)
    for name in ("z.tar", "text.tar"):
        with pytest.raises(DataError, match="none of the 1 tars holds any sample"):
            open_source(config_of(tmp_path / name), "train")
    with caplog.at_level(logging.WARNING):
        open_source(config_of(tmp_path / "{a,z}.tar"), "train")
    assert "it is compressed; unpack it first" in caplog.text


def test_index_is_made_once_and_by_workers_alike(tmp_path, picture, config_of, monkeypatch):
    from contrastive.data import webdataset

    for i in range(5):
        write_tar(tmp_path / f"a-{i}.tar", sample(picture, i) + sample(picture, i + 10))
    pattern = str(tmp_path / "a-{0..4}.tar")
    one, _ = webdataset.tar_index(pattern, ALL, tmp_path / "one")
    two, _ = webdataset.tar_index(pattern, ALL, tmp_path / "two", workers=2)
    np.testing.assert_array_equal(one.table, two.table)
    assert one.fingerprint == two.fingerprint
    monkeypatch.setattr(webdataset, "_build", None)  # would be called again
    again, _ = webdataset.tar_index(pattern, ALL, tmp_path / "one")
    assert again.fingerprint == one.fingerprint
    monkeypatch.setattr(webdataset, "_ON_FIRST_USE", 4)
    with pytest.raises(DataError, match=r"no index of the 5 tars.*contrastive data index"):
        webdataset.tar_index(pattern, ALL, tmp_path / "three", on_first_use=True)


def test_keywords_ids_and_keys(tmp_path, picture, config_of):
    fields = FieldsConfig(
        caption="json.title", keywords="json.tags", id="json.n", key="json.url", held_out_share=0.0
    )
    about = {"title": ["a cat", "other"], "tags": ["x", "", "y"], "n": 7, "url": "http://a"}
    members = [("0.png", picture(0)), ("0.json", json.dumps(about).encode())]
    members += [("1.png", picture(0)), ("1.json", b"[1]"), ("2.png", picture(0)), ("2.json", b"{")]
    source = open_source(config_of(write_tar(tmp_path / "a.tar", members), fields), "train")
    record = source[0]
    assert (record["caption"], record["keywords"]) == ("a cat", ["x", "y"])
    assert (record["id"], record["key"]) == (7, "http://a")
    for i in (1, 2):
        with pytest.raises(SampleError, match="JSON is malformed"):
            source[i]
    (tmp_path / "0.png").write_bytes(picture(0))
    rows = [{"image": "0.png", "caption": "c", "words": "x|y ", "n": n} for n in (7, "a", 2**31)]
    fields = FieldsConfig(keywords="words", id="n", held_out_share=0.0)
    source = open_source(config_of(write_jsonl(tmp_path / "a.jsonl", rows), fields), "train")
    assert source[0]["keywords"] == ["x", "y"]
    assert source[0]["id"] == 7
    for i, reason in ((1, "id is not a whole number"), (2, "id is not between")):
        with pytest.raises(SampleError, match=reason):
            source[i]


def test_class_numbers_become_names(tmp_path, picture, config_of):
    members = []
    for i in range(3):
        members += [(f"{i}.png", picture(i)), (f"{i}.cls", str(i).encode())]
    path = write_tar(tmp_path / "a.tar", members)
    with pytest.raises(SampleError, match="class without a name"):
        open_source(config_of(path), "train")[0]
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    fields = FieldsConfig(class_names=str(names), held_out_share=0.0)
    source = open_source(config_of(path, fields), "train")
    assert [source[i]["caption"] for i in range(2)] == ["cat", "dog"]
    with pytest.raises(SampleError, match="class without a name: number 2 of 2"):
        source[2]
    rows = [{"image": picture(i), "label": i} for i in range(2)]
    features = {"label": {"names": ["owl", "bee"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path = write_parquet(tmp_path / "a.parquet", rows, metadata=metadata)
    source = open_source(config_of(path), "train")
    assert [source[i]["caption"] for i in range(2)] == ["owl", "bee"]


def test_class_folders_and_split_folders(tmp_path, picture, config_of):
    for split, classes in (("train", ("big_cat", "dog")), ("val", ("dog",))):
        for name in classes:
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "0.PNG").write_bytes(picture(0))
    source = open_source(config_of(tmp_path), "train")
    assert [source[i]["caption"] for i in range(2)] == ["big cat", "dog"]
    assert len(open_source(config_of(tmp_path), "validation")) == 1
    with pytest.raises(DataError, match="no folder for the split 'test'"):
        open_source(config_of(tmp_path), "test")
    (tmp_path / "flat").mkdir()
    with pytest.raises(DataError, match="holds no picture"):
        open_source(config_of(tmp_path / "flat", format="image_folder"), "train")
    (tmp_path / "flat" / "a.png").write_bytes(picture(0))
    with pytest.raises(DataError, match="pictures without captions"):
        open_source(config_of(tmp_path / "flat"), "train")


def test_rows_that_name_their_splits(tmp_path, picture, config_of):
    rows = [
        {"image": picture(i), "caption": f"thing {i}", "split": split}
        for i, split in enumerate(("train", "test", "train"))
    ]
    for path in (
        write_parquet(tmp_path / "a.parquet", rows),
        write_arrow(tmp_path / "a.arrow", rows),
        write_jsonl(tmp_path / "a.jsonl", [row | {"image": "x"} for row in rows]),
    ):
        assert len(open_source(config_of(path), "train")) == 2
        assert len(open_source(config_of(path), "test")) == 1
        with pytest.raises(DataError, match=r"no row of the split 'validation'.*'test', 'train'"):
            open_source(config_of(path), "validation")


def test_equal_captions_stay_on_one_side(tmp_path, config_of):
    rows = [{"image": f"{i}.png", "caption": f"Thing  {i // 3}"} for i in range(300)]
    config = config_of(write_jsonl(tmp_path / "a.jsonl", rows), FieldsConfig(held_out_share=0.3))
    sides = [open_source(config, split) for split in ("train", "validation")]
    found = [{side.text(i)[0] for i in range(len(side))} for side in sides]
    assert not found[0] & found[1]
    assert 15 < len(found[1]) < 45
    assert sum(map(len, sides)) == 300


def test_lines_that_are_no_objects_are_counted(tmp_path, picture, config_of):
    (tmp_path / "0.png").write_bytes(picture(0))
    good = {"image": "0.png", "caption": "a cat"}
    path = write_jsonl(tmp_path / "a.jsonl", [good, b"{broken", b"", b"[1]", b"  "])
    config = config_of(path, max_bad_share=0.9)
    found = read_examples(open_source(config, "train"), config)
    assert found.errors.counts == {"line is not a JSON object": 2}
    assert [e["key"] for e in found.errors.entries] == ["a.jsonl (line 2)", "a.jsonl (line 4)"]
    for text, sentence in ((b"", "holds no lines"), (b"a,b\n", "is not JSON Lines")):
        (tmp_path / "b.jsonl").write_bytes(text)
        with pytest.raises(DataError, match=sentence):
            open_source(config_of(tmp_path / "b.jsonl"), "train")


def test_files_that_are_something_else(tmp_path, config_of):
    for name in ("a.parquet", "a.arrow", "a.array_record"):
        (tmp_path / name).write_bytes(b"something else" * 100)
        with pytest.raises(DataError, match=f"{name} cannot be read as"):
            open_source(config_of(tmp_path / name), "train")
    writer = array_record_module.ArrayRecordWriter(str(tmp_path / "b.array_record"), "")
    writer.write(b"\xff\xffno message")
    writer.close()
    with pytest.raises(DataError, match=r"something else than tf\.train\.Example"):
        open_source(config_of(tmp_path / "b.array_record"), "train")


def test_large_row_groups_are_read_once(tmp_path, picture, monkeypatch):
    from contrastive.data import arrow_source

    path = write_parquet(tmp_path / "a.parquet", good_rows(picture, 9))
    reads = []
    plain = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda self, i, **kwargs: reads.append(i) or plain(self, i, **kwargs),
    )
    groups = arrow_source.RowGroups([str(path)], "image")
    assert [groups[i] for i in (0, 8, 1, 4, 2, 7)] == [picture(i) for i in (0, 8, 1, 4, 2, 7)]
    assert reads == [0, 2, 1]
    monkeypatch.setattr(arrow_source, "_CACHED_BYTES", 0)  # the newest is kept
    groups = arrow_source.RowGroups([str(path)], "image")
    assert [groups[i] for i in (0, 8, 1)] == [picture(i) for i in (0, 8, 1)]
    assert reads == [0, 2, 1, 0, 2, 0]


def test_tfds_builders(tmp_path, config_of):
    """A prepared folder, as tensorflow-datasets writes it; the emoji have their own builder."""
    from contrastive.data import emoji

    drawings = emoji.open_split("unseen_concepts", tmp_path / "cache")
    (folder,) = (p.parent for p in (tmp_path / "cache").glob("emoji-*/**/dataset_info.json"))
    config = config_of(f"tfds:{folder}:unseen_concepts")
    source = open_source(config, "train")
    assert len(source) == len(drawings)
    for i in (0, 7):
        record = source[i]
        assert {k: record[k] for k in ("image", "caption", "keywords")} == {
            k: drawings[i][k] for k in ("image", "caption", "keywords")
        }
    with pytest.raises(DataError, match="no split 'validation'; it has"):
        open_source(config, "validation")
    with pytest.raises(DataError, match="tfds:no_such_set cannot be opened"):
        open_source(config_of("tfds:no_such_set"), "train")


def test_names_of_sources():
    for source, kind in {
        "a/{split}-{000..999}.tar": "webdataset",
        "x-00001-of-00002.parquet": "parquet",
        "x.array_record-*-of-00008": "array_record",
        "x.array_record-{00000..00007}-of-00008": "array_record",
        "gs://bucket/*.JSONL": "jsonl",
        "tfds:coco_captions": "tfds",
    }.items():
        assert DataConfig(source=source).kind == kind
    assert DataConfig(source="pairs.txt", format="tsv").kind == "tsv"
    with pytest.raises(ConfigError, match=r"'pairs\.xls' has to be 'emoji', tfds:NAME"):
        DataConfig(source="pairs.xls").kind  # noqa: B018
    with pytest.raises(
        ConfigError, match=r"config\.data\.fields has no effect on the format 'csv'"
    ):
        DataConfig(source="a.csv", fields=ALL)
    with pytest.raises(ConfigError, match=r"config\.data\.csv has no effect on the format 'jsonl'"):
        DataConfig(source="a.jsonl", csv=CsvConfig(quoted=False))


def test_patterns():
    assert files.expand_braces("a-{08..10}-{x,y}.tar") == [
        f"a-{i}-{c}.tar" for i in ("08", "09", "10") for c in "xy"
    ]
    for pattern, sentence in (("a{3..1}", "runs downward"), ("a{split}", "neither a range")):
        with pytest.raises(DataError, match=sentence):
            files.expand_braces(pattern)
    assert files.beside("/a/b.jsonl", "c.png") == "/a/c.png"
    assert files.beside("b.jsonl", "c.png") == "c.png"
    assert files.beside("gs://a/b.jsonl", "c.png") == "gs://a/c.png"
    assert files.beside("/a/b.jsonl", "gs://c.png") == "gs://c.png"
    names = ("train-0-of-2.parquet", "val.jsonl", "valid_1.arrow", "training.parquet", "x/test.csv")
    assert [files.split_of_name(name) for name in names] == [
        "train", "validation", "validation", None, "test",
    ]  # fmt: skip


def test_files_elsewhere(picture, config_of, tmp_path):
    """fsspec's file system in memory stands for buckets."""
    import fsspec

    system = fsspec.filesystem("memory")
    members = [m for i in range(4) for m in sample(picture, i)]
    system.pipe("/bucket/a-0.tar", write_tar(tmp_path / "a.tar", members).read_bytes())
    parquet = write_parquet(tmp_path / "a.parquet", good_rows(picture, 4)).read_bytes()
    system.pipe("/bucket/a.parquet", parquet)
    system.pipe("/bucket/0.png", picture(0))
    system.pipe("/bucket/a.jsonl", b'{"image": "0.png", "caption": "thing number 0"}\n')
    for name, count in (("a-{0..0}.tar", 4), ("a-*.tar", 4), ("a.parquet", 4), ("a.jsonl", 1)):
        source = open_source(config_of(f"memory://bucket/{name}"), "train")
        assert len(source) == count
        assert source[count - 1]["image"] == picture(count - 1)
        assert source[count - 1]["caption"] == f"thing number {count - 1}"
    with pytest.raises(DataError, match="not there"):
        open_source(config_of("memory://bucket/gone-{0..3}.tar"), "train")


def test_the_demo_needs_none_of_the_heavy_readers(tmp_path):
    code = (
        "import sys; from contrastive.data.config import DataConfig; "
        "from contrastive.data import pipeline; "
        "assert not {'pyarrow', 'fsspec', 'tensorflow'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=pathlib.Path(__file__).parents[2])
