"""Mixtures: proportions, epochs of the parts, resumption, processes, bad samples."""

import collections
import dataclasses
import itertools
import json

import numpy as np
import pytest

from contrastive.config import build, to_dict
from contrastive.data.config import DataConfig, FieldsConfig, PartConfig
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.records import Source
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
    ],
)
def test_settings_that_cannot_be(config, change, words):
    with pytest.raises(ConfigError, match=words):
        change(config)


def test_a_part_that_is_too_small_for_its_weight(open_loader):
    with pytest.raises(DataError, match="'good' of the mixture has 19 usable samples, fewer"):
        open_loader(batch_size=32)


def test_a_recipe_can_hold_a_mixture(config):
    parts = [{"name": "a", "source": "a.tar"}, {"name": "b", "source": "b.jsonl", "weight": 2.0}]
    found = build(DataConfig, {"source": "mixture", "mixture": parts})
    assert found.mixture[1].weight == 2.0
    assert np.isclose(found.mixture[0].weight, 1.0)
    assert build(DataConfig, json.loads(json.dumps(to_dict(found)))) == found
