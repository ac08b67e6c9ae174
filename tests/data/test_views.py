"""Two views of a picture, small crops beside them, and sources of pictures alone."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from contrastive.data.augment import random_part
from contrastive.data.config import (
    AugmentConfig,
    CropConfig,
    DataConfig,
    RandAugmentConfig,
    StackConfig,
    ViewsConfig,
)
from contrastive.data.draws import derived, example_keys
from contrastive.data.pipeline import BatchLoader, load_tokenizer, open_source
from contrastive.data.records import DataErrors, InMemorySource
from contrastive.data.source_config import CsvConfig, FieldsConfig
from contrastive.data.transforms import resize
from contrastive.errors import ConfigError, DataError

OFF = AugmentConfig(**{f.name: 0.0 for f in dataclasses.fields(AugmentConfig)})
CONFIG = DataConfig(source="pictures", pairs="views", image_size=8, augment=OFF, threads=0)
STACKED = dataclasses.replace(CONFIG, augment=AugmentConfig())
CROPPED = dataclasses.replace(CONFIG, crop=CropConfig(area=(0.2, 0.5)))


class Indexed(InMemorySource):
    fingerprint = "abc"
    errors = DataErrors()


@pytest.fixture
def open_loader():
    loaders = []

    def open_one(records, config, *, batch_size=10, **options):
        source = records if not isinstance(records, list) else InMemorySource(records)
        tokenizer = load_tokenizer(config, InMemorySource([]))
        loaders.append(
            BatchLoader(source, config, tokenizer, batch_size=batch_size, seed=1, **options)
        )
        return loaders[-1]

    yield open_one
    for loader in loaders:
        loader.close()


def without_words(records):
    return [{**record, "caption": "", "keywords": []} for record in records]


def test_views_are_two_random_parts_of_one_picture(open_loader, make_records):
    records = without_words(make_records(20, side=40))
    batch = next(open_loader(records, CROPPED))
    described = {name: (x.dtype.name, x.shape) for name, x in batch.items()}
    assert described == {
        "view_a": ("uint8", (10, 8, 8, 3)),
        "view_b": ("uint8", (10, 8, 8, 3)),
        "id": ("int32", (10,)),
        "example": ("int64", (10,)),
    }
    keys = example_keys(1, np.arange(10))
    for i, example in enumerate(batch["example"]):
        picture = Image.open(io.BytesIO(records[example]["image"]))
        for name in ("view_a", "view_b"):
            key = derived(keys[i : i + 1], name.replace("_", " "))
            box = random_part(40, 40, key, CROPPED.crop)
            np.testing.assert_array_equal(batch[name][i], np.asarray(resize(picture.crop(box), 8)))
    assert (batch["view_a"] != batch["view_b"]).any(axis=(1, 2, 3)).all()


def test_whole_pictures_differ_by_their_augmentation(open_loader, make_records):
    records = without_words(make_records(20))
    loader = open_loader(records, CONFIG)
    assert loader.examples.images is not None  # decoded once
    plain = next(loader)
    np.testing.assert_array_equal(plain["view_a"], plain["view_b"])
    changed = next(open_loader(records, STACKED))
    assert (changed["view_a"] != changed["view_b"]).any(axis=(1, 2, 3)).all()
    for stack in ("simclr", "moco_v3"):
        config = dataclasses.replace(STACKED, stack=StackConfig(name=stack))
        batch = next(open_loader(records, config))
        assert (batch["view_a"] != batch["view_b"]).any(axis=(1, 2, 3)).all()
        rand = dataclasses.replace(config, rand_augment=RandAugmentConfig(operations=2))
        assert (next(open_loader(records, rand))["view_a"] != batch["view_a"]).any()


def test_the_views_of_moco_v3_are_of_two_kinds(open_loader, make_records):
    """The first is always blurred, the second only at times."""
    records = without_words(make_records(40, side=40))
    stack = StackConfig(name="moco_v3", strength=0.0)
    config = dataclasses.replace(STACKED, image_size=24, stack=stack)
    batch = next(open_loader(records, config, batch_size=40))
    rough = {
        name: np.median(np.abs(np.diff(batch[name].astype(float), axis=2)).mean(axis=(1, 2, 3)))
        for name in ("view_a", "view_b")
    }
    assert rough["view_a"] < 0.8 * rough["view_b"]


@pytest.mark.parametrize("crop", [CropConfig(), CropConfig(area=(0.5, 1.0))])
def test_small_crops(open_loader, make_records, crop):
    views = ViewsConfig(small=3, small_size=6, small_area=(0.05, 0.1))
    config = dataclasses.replace(CONFIG, crop=crop, views=views)
    records = without_words(make_records(20, side=60))
    batch = next(open_loader(records, config))
    assert batch["crops"].shape == (10, 3, 6, 6, 3)
    keys = example_keys(1, np.arange(10))
    small = CropConfig(area=(0.05, 0.1))
    for i, example in enumerate(batch["example"]):
        picture = Image.open(io.BytesIO(records[example]["image"]))
        for j in range(3):
            box = random_part(60, 60, derived(keys[i : i + 1], f"small view {j}"), small)
            assert 0.03 < (box[2] - box[0]) * (box[3] - box[1]) / 3600 < 0.12
            wanted = np.asarray(resize(picture.crop(box), 6))
            np.testing.assert_array_equal(batch["crops"][i, j], wanted)


def test_views_resume_and_divide_over_processes(open_loader, make_records):
    records = without_words(make_records(40, side=30))
    config = dataclasses.replace(
        STACKED, stack=StackConfig(name="simclr"), views=ViewsConfig(small=2, small_size=4)
    )
    whole = open_loader(records, config)
    batches = [next(whole) for _ in range(6)]
    parts = [open_loader(records, config, process_index=i, process_count=2) for i in range(2)]
    for part in parts:
        part.restore({**whole.state(), "step": 4})
    halves = [next(part) for part in parts]
    for name, rows in batches[4].items():
        np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), rows)


def test_equal_pictures_are_equal_content_and_captions_say_nothing(open_loader, make_records):
    records = make_records(20)
    records[3]["image"] = records[7]["image"]
    for record in records:
        record["caption"] = "a class"
    for source, ids_of in (
        (InMemorySource(records), lambda batch: batch["id"].tolist()),
        (Indexed(records), lambda batch: list(map(tuple, batch["id"].tolist()))),
    ):
        check = "during" if isinstance(source, Indexed) else "before"
        config = dataclasses.replace(CONFIG, check=check)
        batch = next(open_loader(source, config, batch_size=20))
        ids = dict(zip(batch["example"].tolist(), ids_of(batch), strict=True))
        assert ids[3] == ids[7]
        assert len(set(ids.values())) == 19


def test_a_bad_picture_is_blank_and_weighs_nothing(open_loader, make_records):
    records = without_words(make_records(20, side=40))
    records[4]["image"] = b"broken"
    config = dataclasses.replace(CROPPED, check="during", views=ViewsConfig(small=2, small_size=4))
    batch = next(open_loader(Indexed(records), config, batch_size=20))
    row = batch["example"].tolist().index(4)
    assert batch["weight"].tolist().count(0.0) == 1
    assert batch["weight"][row] == 0
    assert not batch["view_a"][row].any()
    assert not batch["crops"][row].any()


def pictures(folder, picture, count=12):
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.png").write_bytes(picture(i))


def test_pictures_alone_from_every_reader(tmp_path, picture):
    import json
    import tarfile

    import pyarrow as pa
    import pyarrow.parquet as pq

    pictures(tmp_path / "pictures", picture)
    rows = [{"image": f"pictures/{i}.png"} for i in range(12)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("image\n" + "".join(f"{row['image']}\n" for row in rows))
    table = pa.table({"image": [picture(i) for i in range(12)]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [r["image"] for r in rows]}), tmp_path / "paths.parquet")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i in range(12):
            tar.add(tmp_path / "pictures" / f"{i}.png", f"{i:04}.png")
    for name in ("pictures", "a.jsonl", "a.csv", "a.parquet", "paths.parquet", "a.tar"):
        group = {"csv": CsvConfig(held_out_share=0.3)} if name == "a.csv" else {}
        group = group or {"fields": FieldsConfig(held_out_share=0.3)}
        config = DataConfig(
            source=str(tmp_path / name), pairs="views", cache=str(tmp_path / "c"), **group
        )
        train, held_out = (open_source(config, split) for split in ("train", "validation"))
        assert 0 < len(held_out) < 8, name
        assert len(train) + len(held_out) == 12, name
        found = [source[i] for source in (train, held_out) for i in range(len(source))]
        images = sorted(record["image"] for record in found)
        assert images == sorted(picture(i) for i in range(12)), name
        assert {record["caption"] for record in found} == {""}, name


@pytest.mark.parametrize(
    "change,words",
    [
        ({"negatives": 2}, "config.data.negatives has no effect with config.data.pairs = 'views'"),
        ({"content": "first"}, "config.data.content has no effect"),
        ({"fields": FieldsConfig(query="q")}, r"config\.data\.fields\.query has no effect"),
        ({"source": "synthetic"}, "synthetic pairs are pictures with texts"),
        ({"pairs": "captions", "views": ViewsConfig(small=1)}, r"config\.data\.views has no"),
    ],
)
def test_settings_that_cannot_be(change, words):
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(CONFIG, **change)
    with pytest.raises(ConfigError, match="without small crops"):
        ViewsConfig(small_size=5)
    with pytest.raises(ConfigError, match="smaller one first"):
        ViewsConfig(small=1, small_area=(0.5, 0.1))


def test_contents_that_leave_nothing_to_compare(open_loader, make_records, caplog):
    records = [{**record, "id": i} for i, record in enumerate(make_records(12))]
    config = dataclasses.replace(CONFIG, views=ViewsConfig(second="content"))
    with pytest.raises(DataError, match=r"no two of the 12 pictures have the same content id"):
        open_loader(records, config)
    assert not caplog.messages
    open_loader([{**record, "id": 3} for record in records], config)
    assert any("All 12 pairs are equal in content" in text for text in caplog.messages)


def test_the_second_view_is_another_picture_of_the_same_content(open_loader, make_records):
    records = without_words(make_records(12))
    for i, record in enumerate(records):
        record["id"] = i // 3 if i < 9 else i  # three of three, and three that are alone
    config = dataclasses.replace(CONFIG, views=ViewsConfig(second="content"))
    plain = open_loader(records, CONFIG, batch_size=12)
    loader = open_loader(records, config, batch_size=12)
    batch, other, again = next(loader), next(loader), next(plain)
    pictures = {
        int(example): row for example, row in zip(again["example"], again["view_a"], strict=True)
    }
    partners = {}
    for row, example in enumerate(batch["example"].tolist()):
        np.testing.assert_array_equal(batch["view_a"][row], pictures[example])
        same = [i for i, p in pictures.items() if (p == batch["view_b"][row]).all()]
        assert len(same) == 1
        partners[example] = same[0]
        assert (same[0] == example) == (example >= 9)
        assert records[same[0]]["id"] == records[example]["id"] == batch["id"][row]
    second = {
        example: next(i for i, p in pictures.items() if (p == other["view_b"][row]).all())
        for row, example in enumerate(other["example"].tolist())
    }
    assert second != partners  # drawn anew in the next epoch
    loader.restore({**loader.state(), "step": 0})
    np.testing.assert_array_equal(next(loader)["view_b"], batch["view_b"])
