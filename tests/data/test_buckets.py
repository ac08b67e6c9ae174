"""Data in buckets, read from a server of S3 on this machine.

It needs ``pip install -e '.[buckets]'`` and is a slow test: ``make test-slow
ARGS=tests/data/test_buckets.py``.
"""

import dataclasses
import io
import json
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contrastive.data.config import StreamConfig
from contrastive.data.example_source import make_example
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.errors import DataError, StorageError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # of the servers' and clients' own dependencies
    pytest.mark.filterwarnings("default"),
]
NAMES = ("tars/a-0.tar", "tars/a-1.tar", "tars/a-2.tar")


@pytest.fixture(scope="module")
def s3():
    moto = pytest.importorskip("moto.server", reason="pip install -e '.[buckets]'")
    s3fs = pytest.importorskip("s3fs", reason="pip install -e '.[buckets]'")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "someone")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir("bucket")
        yield "s3", system
        s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(params=["s3"])
def bucket(request, picture):
    """``bucket``, filled: three tars of 8 pairs, and the same pairs in other formats."""
    protocol, system = request.getfixturevalue(request.param)
    if not system.exists("bucket/a.parquet"):
        for number, name in enumerate(NAMES):
            system.pipe(f"bucket/{name}", tar_of(range(8 * number, 8 * number + 8), picture))
        rows = [{"image": {"bytes": picture(i)}, "caption": f"thing number {i}"} for i in range(24)]
        table = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), table, row_group_size=8)
        system.pipe("bucket/a.parquet", table.getvalue())
        arrow = io.BytesIO()
        found = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(arrow, found.schema) as writer:
            writer.write_table(found)
        system.pipe("bucket/a.arrow", arrow.getvalue())
        for i in range(24):
            system.pipe(f"bucket/pictures/{i}.png", picture(i))
        lines = [{"image": f"pictures/{i}.png", "caption": f"thing number {i}"} for i in range(24)]
        system.pipe("bucket/a.jsonl", "".join(f"{json.dumps(x)}\n" for x in lines).encode())
        system.pipe("bucket/a.tfrecord", tfrecord_of(range(24), picture))
    return f"{protocol}://bucket"


def tar_of(numbers, picture):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for i in numbers:
            for suffix, content in (("png", picture(i)), ("txt", f"thing number {i}".encode())):
                member = tarfile.TarInfo(f"{i:04}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def tfrecord_of(numbers, picture):
    found = b""
    for i in numbers:
        payload = make_example({"image": picture(i), "caption": f"thing number {i}".encode()})
        found += len(payload).to_bytes(8, "little") + bytes(4) + payload + bytes(4)
    return found


def batches_of(config, steps=5):
    source = open_source(config, "train")
    loader = BatchLoader(source, config, load_tokenizer(config, source), batch_size=8, seed=1)
    try:
        return [next(loader) for _ in range(steps)]
    finally:
        loader.close()


@pytest.mark.parametrize(
    "name", ["tars/a-{0..2}.tar", "tars/a-*.tar", "a.parquet", "a.arrow", "a.jsonl", "a.tfrecord"]
)
def test_every_pair_comes_from_the_bucket_as_it_is(name, bucket, config_of, picture):
    config = config_of(f"{bucket}/{name}", check="during")
    source = open_source(config, "train")
    assert len(source) == 24
    for i in (0, 7, 8, 23):
        assert source[i]["image"] == picture(i)
        assert source[i]["caption"] == f"thing number {i}"
    batches = batches_of(config)
    assert all((batch["weight"] == 1).all() for batch in batches)
    assert sorted(np.concatenate([b["example"] for b in batches[:3]])) == list(range(24))


def test_tars_give_the_batches_that_local_ones_give(bucket, config_of, picture, tmp_path):
    for number, name in enumerate(NAMES):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tar_of(range(8 * number, 8 * number + 8), picture))
    lanes = StreamConfig(lanes=2, window=2)
    for stream in (StreamConfig(), lanes):
        found, expected = (
            batches_of(
                config_of(
                    f"{where}/tars/a-{{0..2}}.tar",
                    check="during",
                    stream=stream,
                    cache=str(tmp_path / cache),
                )
            )
            for where, cache in ((bucket, "far"), (tmp_path, "near"))
        )
        for a, b in zip(found, expected, strict=True):
            for field in a:
                np.testing.assert_array_equal(a[field], b[field])
    copies = list((tmp_path / "far" / "tars").iterdir())
    assert len(copies) == 3  # of the lanes, which read copies


def test_what_is_not_there_or_not_read_is_one_sentence(bucket, config_of):
    for name, words in (
        ("tars/b-{0..3}.tar", "4 of the files that it names are not there"),
        ("none.parquet", "not there"),
    ):
        with pytest.raises(DataError, match=words):
            open_source(config_of(f"{bucket}/{name}"), "train")
    system = dataclasses.replace(config_of(f"{bucket}/pictures"), format="image_folder")
    with pytest.raises(DataError, match="folders of pictures are read from local disks only"):
        open_source(system, "train")


def test_a_tar_that_vanishes_ends_the_run_until_it_is_back(bucket, config_of, request, picture):
    _, system = request.getfixturevalue(bucket.partition(":")[0])
    system.pipe("bucket/gone-0.tar", tar_of(range(8), picture))
    system.pipe("bucket/gone-1.tar", tar_of(range(8, 16), picture))
    config = config_of(f"{bucket}/gone-{{0..1}}.tar", check="during", max_bad_share=1.0)
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source)
    system.rm("bucket/gone-1.tar")
    loader = BatchLoader(source, config, tokenizer, batch_size=8, seed=1)
    with pytest.raises(StorageError, match=r"gone-1\.tar cannot be read any more"):
        [next(loader) for _ in range(2)]
