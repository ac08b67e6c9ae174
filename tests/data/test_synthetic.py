"""Random pairs: functions of (seed, index), on any number of processes, and resumable."""

import numpy as np
import pytest

from contrastive.data.config import DataConfig
from contrastive.data.pipeline import load_tokenizer, open_batches, open_source
from contrastive.data.source_config import SyntheticConfig
from contrastive.data.synthetic import SyntheticLoader
from contrastive.data.text_config import TokenizerConfig
from contrastive.errors import ConfigError, DataError

CONFIG = DataConfig(
    source="synthetic",
    image_size=5,
    text_length=7,
    tokenizer=TokenizerConfig(vocabulary_size=300),
    synthetic=SyntheticConfig(examples=20),
)


def loader(config=CONFIG, **changes):
    options = {"batch_size": 8, "seed": 3, **changes}
    tokenizer = load_tokenizer(config, open_source(config, "train"))
    return open_batches(open_source(config, "train"), config, tokenizer, **options)


def take(batches, count):
    found = [next(batches) for _ in range(count)]
    batches.close()
    return {name: np.concatenate([b[name] for b in found]) for name in found[0]}


def test_a_pair_is_a_function_of_seed_and_index():
    rows = take(loader(), 5)  # 40 rows of 20 pairs
    assert isinstance(loader(), SyntheticLoader)
    np.testing.assert_array_equal(rows["example"], np.arange(40) % 20)
    for name in ("image", "text", "id"):
        np.testing.assert_array_equal(rows[name][:20], rows[name][20:])
    assert rows["image"].shape == (40, 5, 5, 3)
    assert rows["image"].dtype == np.uint8
    assert len(np.unique(rows["image"][:20].reshape(20, -1), axis=0)) == 20
    other = take(loader(seed=4), 1)
    assert (other["image"] != rows["image"][:8]).mean() > 0.9
    np.testing.assert_array_equal(take(loader(batch_size=20), 1)["text"], rows["text"][:20])


def test_texts_have_markers_words_and_padding():
    text = take(loader(batch_size=20), 1)["text"]
    assert (text[:, 0] == 1).all()
    assert ((text == 2).sum(1) == 1).all()
    ends = (text == 2).argmax(1)
    assert set(ends) <= set(range(2, 7))
    assert len(set(ends)) > 2
    for row, end in zip(text, ends, strict=True):
        assert (row[1:end] > 2).all()
        assert (row[end + 1 :] == 0).all()
    assert text.max() < 300


def test_the_pixels_are_uniform():
    config = DataConfig(source="synthetic", image_size=64, text_length=7)
    values = take(loader(config), 1)["image"]
    assert abs(values.mean() - 127.5) < 0.5
    assert np.bincount(values.ravel(), minlength=256).min() > 0.8 * values.size / 256


def test_processes_share_the_global_batch():
    whole = take(loader(), 3)
    parts = [take(loader(process_index=i, process_count=2), 3) for i in range(2)]
    for name, rows in whole.items():
        both = [p[name].reshape(3, 4, *rows.shape[1:]) for p in parts]
        np.testing.assert_array_equal(np.concatenate(both, 1).reshape(rows.shape), rows)


def test_a_restored_loader_goes_on():
    first = loader()
    take_two = [next(first) for _ in range(2)]
    state = first.state()
    third = next(first)
    first.close()
    second = loader()
    second.restore(state)
    np.testing.assert_array_equal(next(second)["image"], third["image"])
    assert state["step"] == len(take_two)
    second.close()
    with pytest.raises(DataError, match="seed = 3, this run has 9"):
        loader(seed=9).restore(state)


def test_the_vocabulary_has_the_size_that_was_asked_for():
    tokenizer = load_tokenizer(CONFIG)
    assert tokenizer.vocabulary_size == 300
    assert (tokenizer.pad_id, tokenizer.begin_id, tokenizer.end_id) == (0, 1, 2)
    assert tokenizer.encode(["w7 nonsense"]).tolist() == [[1, 7, 3, 2, 0, 0, 0]]


def test_there_is_nothing_else():
    with pytest.raises(DataError, match="only the split 'train'"):
        open_source(CONFIG, "validation")
    with pytest.raises(DataError, match="no pictures to show"):
        open_source(CONFIG, "train")[0]
    with pytest.raises(ConfigError, match="examples = 0"):
        SyntheticConfig(examples=0)
