"""Samples that are checked as they are read: places are kept, rows get weight 0, all is counted."""

import dataclasses
import json
import logging

import jax
import numpy as np
import pytest
from flax import nnx

from contrastive.data.config import DataConfig
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.records import DataErrors, InMemorySource, SampleError
from contrastive.errors import DataError
from contrastive.objectives import LossConfig, make_objective
from contrastive.towers import TwoTower, TwoTowerConfig
from contrastive.towers.convnet import ConvTowerConfig
from contrastive.towers.text import TextTransformerConfig

CONFIG = DataConfig(image_size=8, text_length=8, check="during")


class Indexed(InMemorySource):
    """Says what it holds, as readers of files do; ``fingerprint`` belongs to the records."""

    def __init__(self, records, fingerprint="x", errors=None):
        super().__init__(records)
        self.fingerprint, self.errors = fingerprint, errors or DataErrors()


@pytest.fixture
def open_loader():
    loaders = []

    def open_one(source, config=CONFIG, *, batch_size=10, **kwargs):
        tokenizer = load_tokenizer(config, source)
        loader = BatchLoader(
            source, config, tokenizer, **({"batch_size": batch_size, "seed": 1} | kwargs)
        )
        loaders.append(loader)
        return loader

    yield open_one
    for loader in loaders:
        loader.close()


@pytest.fixture
def spoiled(make_records):
    """100 records; number 42 is no picture, 77 has no caption."""
    records = make_records(100, keywords=["red", "round"])
    records[42]["image"] = b"no picture"
    records[77]["caption"] = " "
    return records


def take(loader, steps):
    return [next(loader) for _ in range(steps)]


def test_batch_is_as_agreed(open_loader, spoiled):
    batch = next(open_loader(Indexed(spoiled)))
    described = {name: (x.dtype.name, x.shape) for name, x in batch.items()}
    assert described == {
        "image": ("uint8", (10, 8, 8, 3)),
        "text": ("int32", (10, 8)),
        "id": ("uint32", (10, 2)),
        "example": ("int64", (10,)),
        "weight": ("float32", (10,)),
    }


def test_B01_bad_samples_keep_their_places_and_count_nothing(open_loader, spoiled, make_records):
    """The order is that of the intact set; only the rows of the bad ones differ."""
    whole = make_records(100, keywords=["red", "round"])
    tokenizer = load_tokenizer(CONFIG, InMemorySource(whole))
    good, bad = (
        BatchLoader(Indexed(records), CONFIG, tokenizer, batch_size=10, seed=1)
        for records in (whole, spoiled)
    )
    for a, b in zip(take(good, 20), take(bad, 20), strict=True):
        np.testing.assert_array_equal(a["example"], b["example"])
        lost = np.isin(b["example"], [42, 77])
        np.testing.assert_array_equal(b["weight"], np.where(lost, 0, 1))
        for name in ("image", "text", "id"):
            np.testing.assert_array_equal(a[name][~lost], b[name][~lost])
        assert (b["id"][lost] == 0xFFFFFFFF).all()
        assert (a["weight"] == 1).all()
    assert bad.errors.counts == {"decode error": 1, "empty caption": 1}  # once, not each epoch
    good.close()
    bad.close()


@pytest.mark.parametrize("threads", [0, 3])
def test_B26_resume_and_processes(open_loader, spoiled, threads):
    config = dataclasses.replace(CONFIG, threads=threads)
    whole = take(open_loader(Indexed(spoiled), config), 25)
    first = open_loader(Indexed(spoiled), config)
    take(first, 13)
    state = json.loads(json.dumps(first.state()))
    parts = [
        open_loader(Indexed(spoiled), config, process_index=i, process_count=2) for i in range(2)
    ]
    for part in parts:
        part.restore(state)
    for step in range(13, 25):
        halves = [next(part) for part in parts]
        for name in whole[step]:
            joined = np.concatenate([half[name] for half in halves])
            np.testing.assert_array_equal(joined, whole[step][name])
    with pytest.raises(DataError, match="The data has changed"):
        open_loader(Indexed(spoiled, "other"), config).restore(state)


def test_bad_samples_are_listed_once_over_resumptions(open_loader, spoiled, tmp_path, caplog):
    log = tmp_path / "data_errors.jsonl"
    index_errors = DataErrors()
    index_errors.add(-1, "a.tar/0002", SampleError("no image"))

    def run(steps, **kwargs):
        source = Indexed(spoiled, errors=index_errors)
        loader = open_loader(source, error_log=log, **kwargs)
        take(loader, steps)
        return loader

    def listed(path=log):
        entries = map(json.loads, path.read_text().splitlines())
        return sorted((e["index"], e["key"], e["reason"]) for e in entries)

    expected = [
        (-1, "a.tar/0002", "no image"),
        (42, "key-42", "decode error"),
        (77, "key-77", "empty caption"),
    ]
    with caplog.at_level(logging.WARNING):
        assert run(10).errors.counts == dict.fromkeys(
            ("no image", "decode error", "empty caption"), 1
        )
    assert listed() == expected
    assert len([r for r in caplog.records if "passed over" in r.getMessage()]) == 1
    with open(log, "a") as file:
        file.write('{"index": 3, "key": "cut sho')  # a crash while it was written
    assert run(10).errors.counts["decode error"] == 1
    assert listed() == expected
    run(10, process_index=1, process_count=2)
    assert listed() == expected
    assert {e for e in listed(tmp_path / "data_errors.1.jsonl") if e[0] >= 0} < set(expected)


def test_a_run_that_goes_on_counts_what_one_that_never_stopped_has_counted(
    open_loader, make_records, tmp_path
):
    """Also what was met after the checkpoint, before a crash, is met and counted again."""
    records = make_records(100)
    for i in (3, 30, 42, 57, 77, 90):
        records[i]["image"] = b"no picture"

    def follow(loader, steps):
        found = []
        for _ in range(steps):
            next(loader)
            found.append((loader.skipped(loader.step), loader.state()["bad"]))
        return found

    whole = open_loader(Indexed(records), error_log=tmp_path / "whole.jsonl")
    expected = follow(whole, 25)
    assert len({count for count, _ in expected[:10]}) > 3
    assert [count for count, _ in expected[10:]] == [6] * 15  # each once
    assert [bad["0"] for _, bad in expected[9::10]] == [6, 12]  # rows, in every epoch
    assert [whole.skipped(step) for step in range(1, 26)] == [count for count, _ in expected]

    log = tmp_path / "data_errors.jsonl"
    first = open_loader(Indexed(records), error_log=log)
    follow(first, 4)
    state = json.loads(json.dumps(first.state()))
    follow(first, 6)  # all are listed when it crashes
    with open(log, "a") as file:  # by a run that has met it, and will not again
        file.write('{"index": 5, "key": "key-5", "reason": "decode error", "step": 9}\n')
        file.write((tmp_path / "whole.jsonl").read_text())  # by a process with the same rows
    second = open_loader(Indexed(records), error_log=log)
    second.restore(state)
    assert (second.skipped(4), second.state()["bad"]) == expected[3]
    assert follow(second, 21) == expected[4:]
    assert log.read_text() == (tmp_path / "whole.jsonl").read_text()
    assert follow(open_loader(Indexed(records), error_log=log), 25) == expected  # from the start
    assert log.read_text() == (tmp_path / "whole.jsonl").read_text()


def test_the_share_of_bad_rows_goes_on_too(open_loader, make_records, tmp_path):
    records = make_records(100)
    for i in (3, 30, 42, 57, 77, 90):
        records[i]["image"] = b"no picture"
    config = dataclasses.replace(CONFIG, max_bad_share=0.07)  # nine of 120, at step 12

    def stops_at(loader):
        with pytest.raises(DataError, match=r"9 of the 120 .*max_bad_share allows 7") as raised:
            take(loader, 1000)
        return loader.step, str(raised.value).partition(" All are listed")[0]

    whole, first, second = (
        open_loader(Indexed(records), config, error_log=tmp_path / name)
        for name in ("whole.jsonl", "data_errors.jsonl", "data_errors.jsonl")
    )
    take(first, 7)
    second.restore(json.loads(json.dumps(first.state())))
    assert stops_at(second) == stops_at(whole)
    bad = {"bad": {"0": 7, "1": 5}}
    halves = [
        open_loader(Indexed(records), config, process_index=i, process_count=2) for i in range(2)
    ]
    for i, half in enumerate(halves):
        half.restore(whole.state() | {"step": 8} | bad)
        assert half.state()["bad"] == {str(i): (7, 5)[i]}
        half.restore(whole.state() | {"step": 8} | {"bad": {"0": 12}})
        assert half.state()["bad"] == {str(i): 6}


def test_B01_too_many_bad_samples_stop_the_run(open_loader, make_records, tmp_path):
    records = make_records(100)
    for record in records[::3]:
        record["image"] = b"x"
    log = tmp_path / "data_errors.jsonl"
    loader = open_loader(Indexed(records), error_log=log)
    with pytest.raises(
        DataError, match=r"1\d of the \d+ samples so far.*max_bad_share allows 10"
    ) as e:
        take(loader, 100)
    assert str(log) in str(e.value)
    assert len(log.read_text().splitlines()) == len(loader.errors) > 10
    every = open_loader(Indexed(records), dataclasses.replace(CONFIG, max_bad_share=0.4))
    take(every, 30)
    assert len(every.errors) == 34
    for record in records:
        record["image"] = b"x"
    none = open_loader(Indexed(records), dataclasses.replace(CONFIG, max_bad_share=1.0))
    with pytest.raises(DataError, match=r"100 of the 100 samples"):
        take(none, 100)


def test_what_the_index_leaves_out_counts(open_loader, make_records):
    errors = DataErrors()
    errors.count("no caption", 50)
    with pytest.raises(DataError, match=r"50 of 150 samples \(33\.3%\).*50 no caption"):
        open_loader(Indexed(make_records(100), errors=errors))


def test_an_index_is_needed(open_loader, make_records):
    with pytest.raises(DataError, match=r"InMemorySource has no index.*'before'"):
        open_loader(InMemorySource(make_records(20)))


def test_large_sets_are_not_read_through(open_loader, make_records, monkeypatch):
    from contrastive.data import pipeline

    class Counted(Indexed):
        reads = 0

        def __getitem__(self, index, /):
            self.reads += 1
            return super().__getitem__(index)

        def text(self, index, /):
            return super().__getitem__(index)["caption"], []

    auto = dataclasses.replace(CONFIG, check="auto", threads=0, prefetch=0)
    source = Counted(make_records(100))
    open_loader(source, auto)
    assert source.reads == 100
    monkeypatch.setattr(pipeline, "_BEFORE", 99)
    source = Counted(make_records(100))
    next(open_loader(source, auto))
    assert source.reads == 10
    whole = open_loader(InMemorySource(make_records(100)), auto)  # like a CSV file: no index
    assert "weight" not in next(whole)


def test_equal_captions_and_equal_ids_are_equal_content(open_loader, make_records):
    records = make_records(20)
    records[3]["caption"] = "Thing  NUMBER 1"
    records[5]["id"] = records[6]["id"] = 7
    loader = open_loader(Indexed(records), batch_size=20)
    batch = next(loader)
    ids = {int(e): tuple(i) for e, i in zip(batch["example"], batch["id"].tolist(), strict=True)}
    assert ids[3] == ids[1]
    assert ids[5] == ids[6]
    assert len(set(ids.values())) == 18


@pytest.mark.slow
def test_rows_of_weight_0_leave_loss_and_gradient_alone(open_loader, spoiled):
    """The loss of a batch with a bad row is the loss of the batch without that row."""
    loader = open_loader(Indexed(spoiled))
    batch = next(b for b in take(loader, 10) if 42 in b["example"])
    keep = batch["weight"] > 0
    assert keep.sum() == 9
    config = TwoTowerConfig(
        embedding_dim=4,
        image=ConvTowerConfig(widths=(4,)),
        text=TextTransformerConfig(width=8, depth=1, heads=1),
    )
    model = TwoTower(
        config,
        image_size=8,
        text_length=8,
        vocabulary_size=400,
        pad_id=0,
        scale_init=10.0,
        bias_init=None,
        rngs=nnx.Rngs(0),
    )
    graphdef, params = nnx.split(model)
    objective = make_objective(LossConfig(name="clip"))

    def value(params, arrays):
        return objective(nnx.merge(graphdef, params), arrays, jax.random.key(0))

    step = jax.jit(jax.value_and_grad(value, has_aux=True))
    arrays = {name: x for name, x in batch.items() if name != "example"}
    (a, metrics_a), grad_a = step(params, arrays)
    small = {name: x[keep] for name, x in arrays.items() if name != "weight"}
    (b, metrics_b), grad_b = step(params, small)
    np.testing.assert_allclose(a, b, rtol=1e-5)
    for x, y in zip(jax.tree.leaves(grad_a), jax.tree.leaves(grad_b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5)
    for name, x in metrics_a.items():
        np.testing.assert_allclose(x, metrics_b[name], rtol=1e-4, atol=1e-6, err_msg=name)
