"""Tars that are read one after another: the order, and copies of remote ones."""

import errno
import io
import itertools
import logging
import pathlib
import tarfile

import fsspec
import numpy as np
import pytest

from contrastive.data import files
from contrastive.data.lanes import Lanes
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.shard_cache import ShardCache
from contrastive.data.sources import open_source
from contrastive.data.stream_config import StreamConfig
from contrastive.errors import ConfigError, DataError

SIZES = [7, 3, 12, 1, 9, 5, 8, 10, 6, 11, 4, 2]  # 78 samples
STARTS = np.cumsum([0, *SIZES])
BATCH = 8


def lanes(count=4, window=2, seed=0, starts=STARTS):
    return Lanes(starts, lanes=count, window=window, batch_size=BATCH, seed=seed)


@pytest.mark.parametrize("count, window", [(1, 1), (2, 3), (4, 2), (8, 100)])
def test_each_sample_comes_at_most_once_an_epoch(count, window):
    order = lanes(count, window)
    used = len(order_of_epoch(order, 0))
    assert used == 78 // BATCH * BATCH
    epochs = [order_of_epoch(order, epoch) for epoch in range(3)]
    assert all(len(set(epoch)) == used and set(epoch) <= set(range(78)) for epoch in epochs)
    left = [frozenset(range(78)) - set(epoch) for epoch in epochs]
    assert len(set(left)) > 1  # not always the same ones are left out
    assert epochs[0] != epochs[1]


def order_of_epoch(order, epoch):
    used = 78 // BATCH * BATCH
    return [order[epoch * used + i] for i in range(used)]


def test_the_order_is_a_function_of_the_seed():
    first, again, other = lanes(seed=1), lanes(seed=1), lanes(seed=2)
    assert order_of_epoch(first, 1) == order_of_epoch(again, 1) != order_of_epoch(other, 1)
    # from the middle, and backwards
    assert [again[i] for i in (200, 3, 100)] == [first[i] for i in (200, 3, 100)]


def test_a_lane_reads_few_tars_at_a_time():
    """1,000 tars of 50: in ten steps, a lane of 4 samples a step meets at most two windows."""
    starts = np.arange(0, 50_050, 50)
    order = Lanes(starts, lanes=4, window=3, batch_size=16, seed=0)
    for lane in range(4):
        rows = [16 * step + 4 * lane + i for step in range(10) for i in range(4)]
        tars = {order[row] // 50 for row in rows}
        assert len(tars) <= 6
        assert len(tars) > 1  # they are mixed
    everywhere = {order[i] // 50 for i in range(160)}
    assert len(everywhere) <= 4 * 6


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"batch_size = 8 .*lanes = 3"):
        lanes(3)


@pytest.mark.parametrize(
    "wrong", [{"lanes": -1}, {"window": 0, "lanes": 1}, {"cache_gib": 0.0, "lanes": 1}]
)
def test_settings_without_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"config\.data\.stream"):
        StreamConfig(**wrong)


def test_settings_without_effect_are_refused(config_of):
    with pytest.raises(ConfigError, match=r"config\.data\.stream\.window .* without lanes"):
        config_of("a.tar", stream=StreamConfig(window=2))


@pytest.mark.parametrize("wrong", [{"source": "a.parquet"}, {"source": "a.tar", "check": "before"}])
def test_other_formats_and_checks_are_refused(config_of, wrong):
    source, options = wrong["source"], {k: v for k, v in wrong.items() if k != "source"}
    with pytest.raises(ConfigError, match=r"config\.data\.stream\.lanes is for webdataset"):
        config_of(source, stream=StreamConfig(lanes=1), **options)


@pytest.fixture
def tars(picture):
    """Eight tars of five samples in a file system that is not local."""
    system = fsspec.filesystem("memory")
    for number in range(8):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            for i in range(5):
                name = 5 * number + i
                for suffix, value in (("png", picture(name)), ("txt", f"thing {name}".encode())):
                    info = tarfile.TarInfo(f"{name:03}.{suffix}")
                    info.size = len(value)
                    tar.addfile(info, io.BytesIO(value))
        system.pipe_file(f"/lanes/a-{number}.tar", data.getvalue())
    yield "memory://lanes/a-{0..7}.tar"
    system.rm("/lanes", recursive=True)


def test_remote_tars_are_copied_once_and_give_what_they_give_directly(
    tars, config_of, tmp_path, monkeypatch
):
    fetched = []
    fetch = files.fetch
    monkeypatch.setattr(files, "fetch", lambda p, to: (fetched.append(p), fetch(p, to)))
    config = config_of(tars, stream=StreamConfig(lanes=2, window=2))
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source, tmp_path)
    plain = open_source(config_of(tars), "train")

    def batches(count, skip=0, **part):
        loader = BatchLoader(source, config, tokenizer, batch_size=4, seed=0, **part)
        if skip:
            loader.restore(loader.state() | {"step": skip})
        try:
            return [next(loader) for _ in range(count)]
        finally:
            loader.close()

    whole = batches(25)  # two epochs and a half
    assert sorted(set(fetched)) == sorted(fetched)
    assert len(fetched) == 8
    for begin in (0, 10):
        seen = np.concatenate([batch["example"] for batch in whole[begin : begin + 10]])
        assert sorted(seen) == list(range(40))
    for batch in whole:
        assert (batch["weight"] == 1).all()
    assert source[7] == plain[7]
    halves = [batches(25, process_index=i, process_count=2) for i in range(2)]
    for one, first, second in zip(whole, *halves, strict=True):
        for name in one:
            both = np.concatenate([first[name], second[name]])
            np.testing.assert_array_equal(one[name], both)
    for one, again in zip(whole[13:], batches(12, skip=13), strict=True):
        np.testing.assert_array_equal(one["example"], again["example"])
    assert len(fetched) == 8


def test_copies_make_room_for_others(tars, tmp_path, caplog):
    paths = files.expand(tars)
    contents = [files.read_bytes(path) for path in paths]
    cache = ShardCache(tmp_path / "tars", most_bytes=3 * len(contents[0]))
    with caplog.at_level(logging.WARNING):
        for path, content in zip(paths, contents, strict=True):
            assert cache.read_at(path, 512, 100) == content[512:612]
            assert len(list((tmp_path / "tars").iterdir())) <= 3
        assert not caplog.records
        assert cache.read_at(paths[0], 0, 10) == contents[0][:10]
        assert cache.read_at(paths[1], 0, 10) == contents[1][:10]
    assert [record.getMessage() for record in caplog.records] == [caplog.messages[0]]
    assert "a-0.tar is fetched again" in caplog.messages[0]
    again = ShardCache(tmp_path / "tars", most_bytes=3 * len(contents[0]))
    again.read_at(paths[2], 0, 10)
    assert len(list((tmp_path / "tars").iterdir())) <= 3  # those of the earlier run count


def test_a_copy_that_was_removed_is_fetched_anew(tars, tmp_path):
    path = files.expand(tars)[0]
    cache = ShardCache(tmp_path / "tars", most_bytes=1 << 30)
    for _ in range(2):
        assert len(cache.read_at(path, 0, 100)) == 100
        for copy in (tmp_path / "tars").iterdir():
            copy.unlink()
    with pytest.raises(FileNotFoundError):
        cache.read_at("memory://lanes/none.tar", 0, 1)


def test_tars_that_cannot_be_copied_are_read_where_they_are(tars, tmp_path, caplog, monkeypatch):
    paths = files.expand(tars)
    cache = ShardCache(tmp_path / "tars", most_bytes=1 << 30)
    tried = []

    def full(path, to):
        tried.append(path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "fetch", full)
    for path in [*paths, *paths]:
        assert cache.read_at(path, 512, 100) == files.read_bytes(path)[512:612]
    assert tried == paths  # once each
    assert len(caplog.messages) == 1
    assert "a-0.tar cannot be copied to" in caplog.messages[0]
    assert "No space left on device" in caplog.messages[0]
    assert not list((tmp_path / "tars").iterdir())


def test_a_cache_that_cannot_be_made_is_named_and_not_needed_for_local_tars(
    tars, config_of, tmp_path, picture
):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"config\.data\.cache takes another place"):
        ShardCache(tmp_path / "file" / "tars", most_bytes=1)
    for path in files.expand(tars):
        (tmp_path / path.rpartition("/")[2]).write_bytes(files.read_bytes(path))
    config = config_of(str(tmp_path / "a-{0..7}.tar"), stream=StreamConfig(lanes=2))
    assert len(open_source(config, "train")) == 40
    assert not (pathlib.Path(config.cache) / "tars").exists()


def test_copies_of_another_process_take_room_too(tars, tmp_path):
    paths = files.expand(tars)
    size = len(files.read_bytes(paths[0]))
    one, other = (ShardCache(tmp_path / "tars", most_bytes=2 * size) for _ in range(2))
    one.read_at(paths[0], 0, 10)
    one.read_at(paths[1], 0, 10)
    for path in (paths[0], paths[1], paths[2]):
        other.read_at(path, 0, 10)
    assert len(list((tmp_path / "tars").iterdir())) == 2


def test_lanes_go_on_over_windows_in_order():
    """A lane finishes a window before it begins the next."""
    order = lanes(1, 1)
    tars = [int(np.searchsorted(STARTS, order[i], side="right")) for i in range(72)]
    changes = [a for a, b in itertools.pairwise(tars) if a != b]
    assert len(changes) == len(set(changes))
