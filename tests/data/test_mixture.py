"""Mixtures: proportions, epochs of the parts, resumption, processes, bad samples."""

import collections
import dataclasses
import itertools
import json
import math
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrastive.config import build, to_dict
from contrastive.data.config import DataConfig
from contrastive.data.mixture import _Turns
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.records import Source
from contrastive.data.source_config import FieldsConfig, PartConfig
from contrastive.errors import ConfigError, DataError


@pytest.fixture
def config(tmp_path, picture):
    """Two sets of 40 and 20 pairs, mixed 1 : 3; the last pair of each has no picture."""
    parts = []
    for name, count, weight in (("web", 40, 1.0), ("good", 20, 3.0)):
        folder = tmp_path / name
        folder.mkdir()
        rows = [{"image": f"{i}.png", "caption": f"{name} {i}"} for i in range(count)]
        for i in range(count - 1):
            (folder / f"{i}.png").write_bytes(picture(i))
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        fields = FieldsConfig(held_out_share=0.0)
        parts.append(
            PartConfig(name=name, source=str(folder / "a.jsonl"), weight=weight, fields=fields)
        )
    return DataConfig(source="mixture", mixture=tuple(parts), image_size=8, text_length=8)


@pytest.fixture
def open_loader(config):
    loaders = []

    def open_one(**kwargs):
        own = dataclasses.replace(config, check=kwargs.pop("check", "before"))
        source = open_source(own, "train")
        tokenizer = load_tokenizer(own, source)
        options = {"batch_size": 8, "seed": 1} | kwargs
        loaders.append(BatchLoader(source, own, tokenizer, **options))
        return loaders[-1]

    yield open_one
    for loader in loaders:
        loader.close()


def examples(loader, steps):
    return [next(loader)["example"].tolist() for _ in range(steps)]


@pytest.mark.parametrize("check", ["before", "during"])
def test_proportions_and_epochs_of_the_parts(open_loader, check):
    loader = open_loader(check=check)
    batches = examples(loader, 60)
    for batch in batches:
        assert sum(i < 40 for i in batch) == 2  # one in four, in every batch
    seen = list(itertools.chain(*batches))
    sizes = {"web": 39, "good": 19} if check == "before" else {"web": 40, "good": 20}
    for name, first, last in (("web", 0, 40), ("good", 40, 60)):
        own, size = [i for i in seen if first <= i < last], sizes[name]
        for epoch in range(len(own) // size):
            part = own[epoch * size : (epoch + 1) * size]
            assert len(set(part)) == size
        assert own[:size] != own[size : 2 * size]
        counted = loader.parts()[name]
        assert counted["samples"] == len(own)
        assert counted["epochs"] == pytest.approx(len(own) / size)
    assert sum(loader.errors.counts.values()) == 2
    assert sorted(e["key"].split(":")[0] for e in loader.errors.entries) == ["good", "web"]


def test_resume_and_processes(open_loader):
    whole = examples(open_loader(), 20)
    first = open_loader()
    examples(first, 9)
    parts = [open_loader(process_index=i, process_count=2) for i in range(2)]
    for part in parts:
        part.restore(json.loads(json.dumps(first.state())))
    halves = [examples(part, 11) for part in parts]
    assert [a + b for a, b in zip(*halves, strict=True)] == whole[9:]
    assert parts[0].parts() == parts[1].parts()
    assert examples(open_loader(seed=2), 20) != whole


@pytest.fixture
def ending(config):
    """Parts of 39, 19 and 9 usable pairs, 2 : 3 : 5; the last two end, after 2 and 1.5 passes."""
    short = config.mixture[1]
    first = pathlib.Path(short.source)
    path = first.with_name("b.jsonl")
    path.write_text("".join(line + "\n" for line in first.read_text().splitlines()[:9]))
    changes = ({"weight": 2.0}, {"weight": 3.0, "epochs": 2.0})
    parts = [dataclasses.replace(p, **c) for p, c in zip(config.mixture, changes, strict=True)]
    last = dataclasses.replace(short, name="few", source=str(path), weight=5.0, epochs=1.5)
    return dataclasses.replace(config, mixture=(*parts, last), check="before")


PARTS = {"web": (0, 40), "good": (40, 60), "few": (60, 69)}


def by_part(numbers):
    return {
        name: [i for i in numbers if first <= i < last] for name, (first, last) in PARTS.items()
    }


def open_ending(config, **options):
    source = open_source(config, "train")
    tokenizer = load_tokenizer(config, source)
    return BatchLoader(source, config, tokenizer, **{"batch_size": 4, "seed": 1} | options)


def test_a_part_that_ends_and_the_others_take_its_turns(ending):
    loader = open_ending(ending)
    seen, counted = [], []
    for _ in range(40):
        seen += next(loader)["example"].tolist()
        counted.append(loader.parts())
        for name, own in by_part(seen).items():  # the counters are exact at every step
            assert counted[-1][name]["samples"] == len(own)
            size = {"web": 39, "good": 19, "few": 9}[name]
            assert counted[-1][name]["epochs"] == len(own) / size
    loader.close()
    own = by_part(seen)
    assert len(own["few"]) == 14  # one and a half passes over 9, rounded up
    assert sorted(own["few"][:9]) == list(range(60, 69))
    assert len(set(own["few"][9:])) == 5
    assert len(own["good"]) == 38
    for half in (own["good"][:19], own["good"][19:]):
        assert sorted(half) == list(range(40, 59))
    few_ends = max(i for i, n in enumerate(seen) if n in own["few"])
    good_ends = max(i for i, n in enumerate(seen) if n in own["good"])
    assert few_ends in (27, 28)  # 14 of 28 samples, five in ten
    between = by_part(seen[few_ends + 1 : good_ends + 1])
    assert abs(len(between["web"]) * 3 - len(between["good"]) * 2) <= 3  # still 2 : 3
    assert set(seen[good_ends + 1 :]) == set(range(39))
    assert counted[-1]["few"]["epochs"] == 14 / 9


def test_resume_across_the_end_of_a_part(ending):
    whole = examples(open_ending(ending), 40)
    for stop in (3, 6, 7, 20, 24, 39):
        first = open_ending(ending)
        examples(first, stop)
        state = json.loads(json.dumps(first.state()))
        parts = [open_ending(ending, process_index=i, process_count=2) for i in range(2)]
        for part in parts:
            part.restore(state)
        halves = [examples(part, 40 - stop) for part in parts]
        assert [a + b for a, b in zip(*halves, strict=True)] == whole[stop:]
        for loader in (first, *parts):
            loader.close()
    longer = dataclasses.replace(ending.mixture[1], epochs=3.0)
    other = open_ending(dataclasses.replace(ending, mixture=(ending.mixture[0], longer)))
    with pytest.raises(DataError, match="The data has changed"):
        other.restore(state)
    other.close()


@given(
    weights=st.lists(st.integers(1, 50), min_size=2, max_size=5),
    sizes=st.lists(st.integers(1, 40), min_size=5, max_size=5),
    epochs=st.lists(st.none() | st.floats(0.1, 3.0), min_size=5, max_size=5),
)
@settings(deadline=None, max_examples=15)
def test_turns_are_those_of_a_walk(weights, sizes, epochs):
    """Position by position: each part gives its samples in order, as many as its limit, and as
    evenly among the parts that are left as whole numbers allow."""
    count = len(weights)
    sizes, epochs = sizes[:count], [None, *epochs[1:count]]
    turns = _Turns([w / sum(weights) for w in weights], sizes, epochs)
    limits = [
        math.inf if e is None else math.ceil(e * s) for e, s in zip(epochs, sizes, strict=True)
    ]
    taken, since, begin = [0] * count, [0] * count, 0
    for position in range(80):
        assert turns.taken(position) == tuple(taken)
        part, number = turns.at(position)
        assert number == taken[part] < limits[part]
        taken[part] += 1
        since[part] += 1
        active = [i for i in range(count) if taken[i] < limits[i] or i == part]
        total = sum(weights[i] for i in active)
        for i in active:
            assert abs(since[i] - (position + 1 - begin) * weights[i] / total) < count
        if taken[part] == limits[part]:
            since, begin = [0] * count, position + 1


def test_one_source_has_no_parts(make_records, config):
    from contrastive.data.records import InMemorySource

    plain = dataclasses.replace(config, source="emoji", mixture=())
    source = InMemorySource(make_records(20))
    loader = BatchLoader(source, plain, load_tokenizer(plain, source), batch_size=4, seed=0)
    assert loader.parts() == {}
    loader.close()


def test_records_name_their_part(config):
    source = open_source(config, "train")
    assert isinstance(source, Source)
    assert len(source) == 60
    assert source[41]["key"] == "good: a.jsonl (line 2)"
    counts = collections.Counter(source[i]["caption"].split()[0] for i in range(39))
    assert counts == {"web": 39}


def test_splits_of_the_parts(config):
    with pytest.raises(DataError, match="no part of the mixture has the split 'test'"):
        open_source(config, "test")
    held = dataclasses.replace(config.mixture[0], fields=FieldsConfig(held_out_share=0.5))
    one = dataclasses.replace(config, mixture=(held, config.mixture[1]))
    found = open_source(one, "validation")
    assert {found[i]["key"].split(":")[0] for i in range(3)} == {"web"}


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda c: dataclasses.replace(c, mixture=c.mixture[:1]), "needs two or more"),
        (lambda c: dataclasses.replace(c, mixture=c.mixture[:1] * 2), "its own name"),
        (lambda c: dataclasses.replace(c, source="emoji"), "config.data.mixture has no effect"),
        (lambda c: dataclasses.replace(c.mixture[0], weight=0.0), "weight 0.0 of 'web'"),
        (lambda c: PartConfig(name="a", source="synthetic"), "synthetic pairs cannot be mixed"),
        (lambda c: dataclasses.replace(c.mixture[0], epochs=0.0), "epochs = 0.0 of 'web'"),
        (
            lambda c: dataclasses.replace(
                c, mixture=tuple(dataclasses.replace(p, epochs=1.0) for p in c.mixture)
            ),
            "one part at least has to repeat",
        ),
    ],
)
def test_settings_that_cannot_be(config, change, words):
    with pytest.raises(ConfigError, match=words):
        change(config)


def test_a_part_that_is_too_small_for_its_weight(open_loader):
    with pytest.raises(DataError, match="'good' of the mixture has 19 usable samples, fewer"):
        open_loader(batch_size=32)


def test_a_part_that_is_too_small_once_others_have_ended(config):
    parts = tuple(
        dataclasses.replace(part, weight=weight, epochs=epochs)
        for part, weight, epochs in zip(config.mixture, (3.0, 1.0), (1.0, None), strict=True)
    )
    with pytest.raises(DataError, match=r"'good' .* one batch of 24 once 'web' ended"):
        open_ending(dataclasses.replace(config, mixture=parts), batch_size=24)


def test_a_recipe_can_hold_a_mixture(config):
    parts = [{"name": "a", "source": "a.tar"}, {"name": "b", "source": "b.jsonl", "weight": 2.0}]
    found = build(DataConfig, {"source": "mixture", "mixture": parts})
    assert found.mixture[1].weight == 2.0
    assert np.isclose(found.mixture[0].weight, 1.0)
    assert build(DataConfig, json.loads(json.dumps(to_dict(found)))) == found
