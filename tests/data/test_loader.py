"""Order, resumption, processes, bad samples, threads."""

import dataclasses
import io
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from contrastive.data.config import AugmentConfig, DataConfig
from contrastive.data.draws import shuffle_seed
from contrastive.data.pipeline import (
    BatchLoader,
    load_tokenizer,
    read_evaluation_pairs,
    read_examples,
)
from contrastive.data.records import InMemorySource, SampleError
from contrastive.data.text_config import TokenizerConfig
from contrastive.errors import ConfigError, DataError, StorageError

CONFIG = DataConfig(image_size=8, text_length=8)
PLAIN = dataclasses.replace(
    CONFIG, augment=AugmentConfig(**{f.name: 0.0 for f in dataclasses.fields(AugmentConfig)})
)


@pytest.fixture
def open_loader(make_records):
    """Opens loaders on 100 records and closes them at the end."""
    loaders = []
    records = make_records(100, keywords=["red", "round", "old"])

    def open_one(config=CONFIG, *, source=None, batch_size=10, seed=1, **kwargs):
        source = InMemorySource(records) if source is None else source
        tokenizer = load_tokenizer(config, source)
        loader = BatchLoader(source, config, tokenizer, batch_size=batch_size, seed=seed, **kwargs)
        loaders.append(loader)
        return loader

    yield open_one
    for loader in loaders:
        loader.close()


def take(loader, steps):
    return [next(loader) for _ in range(steps)]


def examples(batches):
    return [b["example"].tolist() for b in batches]


def order(loader, steps):
    return list(itertools.chain(*examples(take(loader, steps))))


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert x.keys() == y.keys()
        for name in x:
            np.testing.assert_array_equal(x[name], y[name], strict=True)


def test_batch_is_as_agreed(open_loader):
    batch = next(open_loader())
    described = {name: (x.dtype.name, x.shape) for name, x in batch.items()}
    assert described == {
        "image": ("uint8", (10, 8, 8, 3)),
        "text": ("int32", (10, 8)),
        "id": ("int32", (10,)),
        "example": ("int64", (10,)),
    }


def test_B25_order_is_a_permutation_that_changes_per_epoch_and_with_the_seed(open_loader):
    loader = open_loader()
    assert (loader.steps_per_epoch, loader.dropped_per_epoch) == (10, 0)
    epochs = [order(loader, 10) for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(100))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert loader.epoch == 3
    again = open_loader()
    assert [order(again, 10) for _ in range(3)] == epochs
    # A neighbouring seed must not be the same run, one epoch on.
    other = open_loader(seed=2)
    others = [order(other, 10) for _ in range(3)]
    assert not {tuple(e) for e in epochs} & {tuple(e) for e in others}
    assert abs(shuffle_seed(1) - shuffle_seed(2)) > 1000


def test_B25_two_processes_share_an_epoch(open_loader):
    parts = [open_loader(process_index=i, process_count=2) for i in range(2)]
    for _ in range(2):
        seen = [order(part, 10) for part in parts]
        assert sorted(seen[0] + seen[1]) == list(range(100))


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["augmented", "plain"])
def test_global_batches_are_the_same_on_any_number_of_processes(open_loader, count, config):
    whole = take(open_loader(config), 13)
    parts = [
        take(open_loader(config, process_index=i, process_count=count), 13) for i in range(count)
    ]
    joined = [
        {name: np.concatenate([part[step][name] for part in parts]) for name in whole[0]}
        for step in range(13)
    ]
    assert_same(whole, joined)


@pytest.mark.parametrize("threads,prefetch", [(0, 0), (1, 1), (4, 7)])
@pytest.mark.parametrize("memory_mib", [0, 1024])
def test_threads_change_nothing(open_loader, threads, prefetch, memory_mib):
    config = dataclasses.replace(CONFIG, threads=threads, prefetch=prefetch, memory_mib=memory_mib)
    assert_same(take(open_loader(), 12), take(open_loader(config), 12))


class Watched(InMemorySource):
    """Knows which threads have read how many records, and how willingly they give way."""

    def __init__(self, records):
        super().__init__(records)
        self.reads, self.niceness = [], set()

    def __getitem__(self, index, /):
        self.reads.append(threading.current_thread().name)
        self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        time.sleep(0.001)
        return super().__getitem__(index)


def test_threads_and_prefetch_have_their_effect(open_loader, make_records):
    def reads(threads, prefetch):
        source = Watched(make_records(100))
        config = dataclasses.replace(CONFIG, memory_mib=0, threads=threads, prefetch=prefetch)
        loader = open_loader(config, source=source)
        opening = set(source.reads)  # the tokenizer's reading, on the main thread, too
        source.reads.clear()
        next(loader)
        deadline = time.monotonic() + 10
        expected = 10 * (1 + (prefetch if threads else 0))
        while len(source.reads) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        return opening, set(source.reads), len(source.reads)

    main = {threading.current_thread().name}
    assert reads(0, 5) == (main, main, 10)
    for threads, prefetch in ((1, 1), (3, 5)):
        opening, running, count = reads(threads, prefetch)
        assert main.isdisjoint(running)
        assert len(opening - main) == len(running) == threads
        assert count == 10 * (1 + prefetch)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_threads_that_make_batches_give_way_to_the_step(open_loader, make_records):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    source = Watched(make_records(100))
    loader = open_loader(dataclasses.replace(CONFIG, memory_mib=0, threads=2), source=source)
    source.niceness.clear()
    next(loader)
    assert source.niceness == {max(own, 10)}
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    source = Watched(make_records(100))
    next(open_loader(dataclasses.replace(CONFIG, memory_mib=0, threads=0), source=source))
    assert source.niceness == {own}


def test_hidden_words_are_drawn_for_each_example(open_loader):
    def texts(hidden, **options):
        words = TokenizerConfig(kind="words", hidden=hidden)
        loader = open_loader(dataclasses.replace(CONFIG, tokenizer=words), **options)
        return np.concatenate([b["text"] for b in take(loader, 20)]), loader._tokenizer

    whole, tokenizer = texts(0.0)
    some, _ = texts(0.3)
    word = ~np.isin(whole, [tokenizer.pad_id, tokenizer.begin_id, tokenizer.end_id])
    assert tokenizer.unknown_id not in whole
    assert set(some[some != whole].tolist()) == {tokenizer.unknown_id}
    assert abs(np.mean(some[word] != whole[word]) - 0.3) < 0.05
    halves = [texts(0.3, process_index=i, process_count=2)[0] for i in range(2)]
    parts = [half.reshape(20, 5, -1) for half in halves]
    assert (np.concatenate(parts, axis=1).reshape(some.shape) == some).all()


@pytest.mark.parametrize("stop", [0, 3, 10, 17])
def test_B26_resume_equals_never_having_stopped(open_loader, stop):
    whole = take(open_loader(), 25)
    first = open_loader()
    take(first, stop)
    state = json.loads(json.dumps(first.state()))
    take(first, 2)  # went on after the checkpoint, was lost
    second = open_loader()
    second.restore(state)
    assert_same(take(second, 4), whole[stop : stop + 4])
    third = open_loader()
    third.restore(json.loads(json.dumps(second.state())))
    assert_same(take(third, 3), whole[stop + 4 : stop + 7])
    third.restore(state)  # back, in the same loader, with batches under way
    assert_same(take(third, 3), whole[stop : stop + 3])


def test_B26_resume_on_another_number_of_processes(open_loader):
    whole = take(open_loader(batch_size=20), 12)
    writers = [open_loader(batch_size=20, process_index=i, process_count=2) for i in range(2)]
    for writer in writers:
        take(writer, 7)
    states = [writer.state() for writer in writers]
    assert states[0] == states[1]
    for count in (1, 4):
        readers = [
            open_loader(batch_size=20, process_index=i, process_count=count) for i in range(count)
        ]
        parts = []
        for reader in readers:
            reader.restore(states[0])
            parts.append(examples(take(reader, 5)))
        joined = [list(itertools.chain(*(part[step] for part in parts))) for step in range(5)]
        assert joined == examples(whole[7:])


def test_B26_resume_in_a_fresh_process(open_loader, tmp_path):
    """The order and the random draws depend on nothing of the process, such as hash seeds."""
    code = """
import io, json, sys
import numpy as np
from PIL import Image
from contrastive.data.config import DataConfig
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.records import InMemorySource
def png(i):
    out = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
records = [dict(image=png(i), caption=f"thing number {i}", keywords=["red", "round", "old"],
                id=-1, key=f"key-{i}") for i in range(100)]
config = DataConfig(image_size=8, text_length=8)
source = InMemorySource(records)
loader = BatchLoader(source, config, load_tokenizer(config, source), batch_size=10, seed=1)
loader.restore(json.loads(sys.argv[1]))
batches = [next(loader) for _ in range(3)]
np.savez(sys.argv[2], **{f"{k}{i}": x for i, b in enumerate(batches) for k, x in b.items()})
loader.close()
"""
    loader = open_loader()
    take(loader, 12)
    file = tmp_path / "out.npz"
    subprocess.run([sys.executable, "-c", code, json.dumps(loader.state()), file], check=True)
    other = np.load(file)
    for i, batch in enumerate(take(loader, 3)):
        for name, values in batch.items():
            np.testing.assert_array_equal(values, other[f"{name}{i}"])


def test_state_of_other_data_is_refused(open_loader, make_records, picture):
    state = open_loader().state()
    with pytest.raises(DataError, match="batch_size = 10, this run has 20"):
        open_loader(batch_size=20).restore(state)
    with pytest.raises(DataError, match="seed = 1, this run has 2"):
        open_loader(seed=2).restore(state)
    for field, value in {"caption": "another thing", "image": picture(1000)}.items():
        changed = make_records(100, keywords=["red", "round", "old"])
        changed[7] = {**changed[7], field: value}
        with pytest.raises(DataError, match="The data has changed"):
            open_loader(source=InMemorySource(changed)).restore(state)


def test_A09_training_drops_the_short_batch_and_counts_it(open_loader, make_records):
    loader = open_loader(source=InMemorySource(make_records(19)), batch_size=8)
    assert (loader.steps_per_epoch, loader.dropped_per_epoch) == (2, 3)
    epochs = [order(loader, 2) for _ in range(8)]
    assert all(len(set(epoch)) == 16 for epoch in epochs)
    assert set().union(*epochs) == set(range(19))  # not always the same ones are dropped


def test_batch_that_does_not_fit(open_loader, make_records):
    with pytest.raises(DataError, match=r"19 usable samples.*config\.batch_size = 20"):
        open_loader(source=InMemorySource(make_records(19)), batch_size=20)
    with pytest.raises(ConfigError, match="10 does not divide over 3 processes"):
        open_loader(process_count=3)


def broken_jpeg():
    data = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "JPEG", quality=90)
    return data.getvalue()[: len(data.getvalue()) // 2]


def test_B01_corrupt_image_skips_one_sample_and_is_counted(open_loader, make_records, tmp_path):
    records = make_records(10)
    records[5]["image"] = broken_jpeg()
    log = tmp_path / "data_errors.jsonl"
    loader = open_loader(source=InMemorySource(records), batch_size=3, error_log=log)
    assert loader.errors.counts == {"decode error": 1}
    (entry,) = [json.loads(line) for line in log.read_text().splitlines()]
    assert (entry["index"], entry["key"], entry["reason"]) == (5, "key-5", "decode error")
    for _ in range(3):
        seen = order(loader, 3)
        assert sorted(seen) == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_B01_too_many_bad_samples_stop_the_run(make_records, tmp_path):
    records = make_records(10)
    for i in (2, 5):
        records[i]["image"] = broken_jpeg()
    log = tmp_path / "data_errors.jsonl"
    with pytest.raises(DataError, match=r"2 of 10 .*\(20\.0%\).*2 decode error.*key-2") as error:
        read_examples(InMemorySource(records), CONFIG, error_log=log)
    assert "max_bad_share" in str(error.value)
    assert str(log) in str(error.value)
    assert len(log.read_text().splitlines()) == 2
    allowed = dataclasses.replace(CONFIG, max_bad_share=0.2)
    assert len(read_examples(InMemorySource(records), allowed, error_log=log)) == 8
    clean = read_examples(InMemorySource(make_records(3)), CONFIG, error_log=log)
    assert len(clean) == 3
    assert not log.exists()


def test_no_usable_sample(make_records):
    records = make_records(2)
    for record in records:
        record["caption"] = " "
    lenient = dataclasses.replace(CONFIG, max_bad_share=1.0)
    with pytest.raises(DataError, match="2 of 2 samples"):
        read_examples(InMemorySource(records), lenient)
    with pytest.raises(DataError, match="empty"):
        read_examples(InMemorySource([]), lenient)


def test_B19_empty_captions_are_skipped_and_counted(make_records):
    records = make_records(8)
    for i, caption in enumerate(["", "   ", "\n\t", None]):
        records[i]["caption"] = caption
    lenient = dataclasses.replace(CONFIG, max_bad_share=0.5)
    found = read_examples(InMemorySource(records), lenient)
    assert found.errors.counts == {"empty caption": 4}
    assert found.index.tolist() == [4, 5, 6, 7]


class Failing(InMemorySource):
    """Reads well once, then one record fails."""

    def __init__(self, records, bad, error):
        super().__init__(records)
        self.bad, self.error, self.armed = bad, error, False

    def __getitem__(self, index, /):
        if self.armed and index == self.bad:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    "error,seen",
    [(SampleError("missing image", "gone"), "Sample 42 .*gone.*same command"), (OSError("x"), "x")],
)
def test_error_in_a_thread_surfaces_and_nothing_hangs(
    open_loader, make_records, threads, error, seen
):
    source = Failing(make_records(100), 42, error)
    config = dataclasses.replace(CONFIG, memory_mib=0, threads=threads)
    loader = open_loader(config, source=source)
    assert loader.examples.images is None
    source.armed = True
    begin = time.monotonic()
    with pytest.raises(StorageError if isinstance(error, SampleError) else OSError, match=seen):
        take(loader, 10)
    assert time.monotonic() - begin < 20
    loader.close()


def test_close_ends_the_threads(open_loader):
    before = set(threading.enumerate())
    loader = open_loader()
    next(loader)
    started = set(threading.enumerate()) - before
    assert started
    loader.close()
    for thread in started:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in started)


def test_memory_limit_changes_memory_and_not_pixels(open_loader):
    kept, read = open_loader(), open_loader(dataclasses.replace(CONFIG, memory_mib=0))
    assert kept.examples.images is not None
    assert read.examples.images is None
    assert_same(take(kept, 3), take(read, 3))


def test_same_caption_or_same_picture_is_the_same_content(make_records):
    records = make_records(6)
    records[3]["caption"] = "Thing  NUMBER 1"  # as 1
    records[4]["image"] = records[0]["image"]
    records[5]["image"] = records[3]["image"]  # as 3, hence as 1
    found = read_examples(InMemorySource(records), CONFIG)
    assert found.ids.tolist() == [0, 1, 2, 1, 0, 1]
    records[2]["id"] = 10  # given ids are kept; the others stay apart from them
    found = read_examples(InMemorySource(records), CONFIG)
    assert found.ids.tolist() == [11, 12, 10, 12, 11, 12]


def test_given_ids_reach_the_batch(open_loader, make_records):
    records = make_records(20)
    for i, record in enumerate(records):
        record["id"] = 1000 + i // 2
    batch = next(open_loader(source=InMemorySource(records)))
    np.testing.assert_array_equal(batch["id"], 1000 + batch["example"] // 2)


def test_B18_cut_captions_are_counted_when_delivered(open_loader):
    config = dataclasses.replace(CONFIG, text_length=6)
    loader = open_loader(config)
    assert loader.truncated_captions == 0
    rows = np.concatenate([batch["text"] for batch in take(loader, 5)])
    end = load_tokenizer(config, InMemorySource([])).end_id
    assert (np.count_nonzero(rows == end, axis=1) == 1).all()
    full = open_loader(dataclasses.replace(CONFIG, text_length=40))
    lengths = [np.count_nonzero(batch["text"], axis=1) for batch in take(full, 5)]
    assert 0 < loader.truncated_captions == np.count_nonzero(np.concatenate(lengths) > 6) < 50


def test_without_augmentation_pixels_are_those_of_evaluation(open_loader, make_records):
    source = InMemorySource(make_records(20))
    pairs = read_evaluation_pairs(source, PLAIN)
    for batch in take(open_loader(PLAIN, source=source), 2):
        np.testing.assert_array_equal(batch["image"], pairs.images[batch["example"]])


def test_small_pictures_are_enlarged_once(open_loader, make_records):
    """They wait as they are for their geometry; without geometry they are enlarged at the start."""
    source = InMemorySource(make_records(20, side=6))
    sizes = {
        name: {image.size for image in open_loader(config, source=source).examples.images or ()}
        for name, config in (("augmented", CONFIG), ("plain", PLAIN))
    }
    assert sizes == {"augmented": {(6, 6)}, "plain": {(8, 8)}}
    large = open_loader(source=InMemorySource(make_records(20, side=100)))
    assert {image.size for image in large.examples.images or ()} == {(12, 12)}
    assert next(open_loader(source=source))["image"].shape == (10, 8, 8, 3)


def test_evaluation_pairs_leave_bad_samples_out(make_records):
    records = make_records(20)
    records[3]["image"] = b"no picture"
    records[8]["caption"] = records[2]["caption"]
    pairs = read_evaluation_pairs(InMemorySource(records), CONFIG)
    assert pairs.images.shape == (19, 8, 8, 3)
    assert [r["key"] for r in pairs.records] == [f"key-{i}" for i in range(20) if i != 3]
    assert pairs.ids[2] == pairs.ids[7]
    assert len(set(pairs.ids.tolist())) == 18
    assert pairs.errors.counts == {"decode error": 1}


def test_progress_is_told(make_records, monkeypatch):
    clock = iter(range(0, 1000, 2))
    told = []
    monkeypatch.setattr("contrastive.data.examples._now", lambda: float(next(clock)))
    read_examples(InMemorySource(make_records(3)), CONFIG, progress=lambda *now: told.append(now))
    assert told == [(0, 3), (1, 3), (2, 3)]
