"""TFRecord files by number, beside the framing that tensorflow-datasets' own files have."""

import json
import struct

import numpy as np
import pytest

from contrastive.data.example_source import make_example
from contrastive.data.sources import open_source
from contrastive.data.tfrecords import Shard, TFRecords
from contrastive.errors import DataError

PAYLOADS = [b"first", b"", b"third record" * 1000, b"x"]


def write(path, payloads):
    frames = [struct.pack("<Q", len(p)) + b"crc." + p + b"crc." for p in payloads]
    path.write_bytes(b"".join(frames))
    return str(path)


def test_records_by_number_over_files(tmp_path):
    one, two = write(tmp_path / "a", PAYLOADS), write(tmp_path / "b", PAYLOADS[::-1])
    empty = write(tmp_path / "c", [])
    found = TFRecords([Shard(one), Shard(empty), Shard(two)])
    assert [found[i] for i in range(len(found))] == PAYLOADS + PAYLOADS[::-1]
    for index in (-1, 8):
        with pytest.raises(IndexError):
            found[index]
    part = TFRecords([Shard(one, 1, 2), Shard(two, 3), Shard(one, 0, 0)])
    assert [part[i] for i in range(len(part))] == [*PAYLOADS[1:3], PAYLOADS[0]]


@pytest.mark.parametrize("lost", [1, 5, 12, 13])
def test_B02_a_file_that_ends_early_gives_its_whole_records(tmp_path, lost):
    path = tmp_path / "a"
    whole = pathlib_bytes(write(path, PAYLOADS))
    path.write_bytes(whole[:-lost])
    found = TFRecords([Shard(str(path))])
    assert [found[i] for i in range(len(found))] == PAYLOADS[:3]
    assert found.cut_short == [str(path)]


def pathlib_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def examples(picture, n):
    return [make_example({"image": picture(i), "caption": f"thing {i}".encode()}) for i in range(n)]


def test_a_cut_file_is_named_among_the_errors(tmp_path, config_of, picture):
    path = tmp_path / "a.tfrecord-00000-of-00001"
    write(path, examples(picture, 4))
    path.write_bytes(path.read_bytes()[:-30])
    source = open_source(config_of(tmp_path), "train")
    assert len(source) == 3
    assert source.errors.counts == {"truncated file": 1}
    path.write_bytes(b"no record at all")
    with pytest.raises(DataError, match="holds no records"):
        open_source(config_of(tmp_path), "train")


def test_a_prepared_data_set_of_tf_records(tmp_path, config_of, picture):
    """The folder that tensorflow-datasets writes by default, split by split."""
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(), "caption": tfds.features.Text()}
    )
    folder = tmp_path / "set" / "1.0.0"
    folder.mkdir(parents=True)
    write(folder / "set-train.tfrecord-00000-of-00002", examples(picture, 5)[:2])
    write(folder / "set-train.tfrecord-00001-of-00002", examples(picture, 5)[2:])
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[2, 3],
        num_bytes=1,
        filename_template=tfds.core.ShardedFileTemplate(
            data_dir=folder, dataset_name="set", split="train", filetype_suffix="tfrecord"
        ),
    )
    identity = tfds.core.dataset_info.DatasetIdentity(
        name="set", version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name="tests"
    )
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    info.set_file_format("tfrecord")
    info.set_splits(tfds.core.splits.SplitDict([split]))
    info.write_to_directory(folder)
    assert json.loads((folder / "dataset_info.json").read_text())["fileFormat"] == "tfrecord"
    for name, numbers in (("train", range(5)), ("train[1:4]", range(1, 4))):
        source = open_source(config_of(f"tfds:{folder}:{name}"), "train")
        assert [source[i]["caption"] for i in range(len(source))] == [f"thing {i}" for i in numbers]
        np.testing.assert_array_equal(source[0]["image"], picture(numbers[0]))
