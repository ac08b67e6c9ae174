"""The whole evaluation on tiny sets, with an encoder that is as good as we say."""

import dataclasses
import hashlib
import math
import os
import pathlib
import re
import tempfile

import numpy as np
import pytest
from PIL import Image

from contrastive.data.config import DataConfig
from contrastive.data.emoji import load_concepts
from contrastive.data.source_config import CsvConfig, EmojiConfig
from contrastive.errors import ConfigError
from contrastive.evaluation import suite
from contrastive.evaluation.emoji_classes import SUBGROUP_NAMES
from contrastive.evaluation.sets import (
    EvaluationSet,
    KnownPictures,
    emoji_classes,
    evenly,
    load_sets,
)
from contrastive.evaluation.suite import EvaluationConfig, evaluate
from contrastive.evaluation.table import format_line, format_table, share, table_rows

NAMES = ("red", "green", "blue", "white", "black", "pink")
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (255, 128, 192))


def colour_row(colour) -> np.ndarray:
    row = np.array([*colour, 64.0], np.float32)
    return row / np.linalg.norm(row)


class ColourEncoder:
    """Knows colours by name; a twin that has learned nothing gives everything the same row."""

    def __init__(self, trained: bool = True) -> None:
        self.trained = trained
        self.encoded: list[str] = []

    def encode_image(self, images) -> np.ndarray:
        rows = [colour_row(np.asarray(x, np.float32).mean(axis=(0, 1))) for x in images]
        return np.stack(rows) if self.trained else np.ones((len(rows), 4), np.float32) / 2

    def encode_text(self, texts) -> np.ndarray:
        self.encoded += texts
        if not self.trained:
            return np.ones((len(texts), 4), np.float32) / 2
        return np.stack([self._text(text) for text in texts])

    def _text(self, text: str) -> np.ndarray:
        words = [word for word in text.split() if word in NAMES]
        if words:
            return colour_row(COLOURS[NAMES.index(words[0])])
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")
        return colour_row(np.random.default_rng(seed).normal(size=3))

    def untrained(self, seed: int) -> "ColourEncoder":
        return ColourEncoder(trained=False)


@dataclasses.dataclass(frozen=True)
class Settings:
    data: DataConfig
    eval: EvaluationConfig


@pytest.fixture
def csv_settings(tmp_path):
    """Six colours, two of them with two captions, one picture twice; two thirds for validation."""
    lines = ["image,caption,split"]
    for name, colour in zip(NAMES, COLOURS, strict=True):
        Image.new("RGB", (6, 6), colour).save(tmp_path / f"{name}.png")
        lines.extend(f"{name}.png,{name} square,{split}" for split in ("train", "validation"))
    lines += ["red.png,red thing,validation", "red.png,red square,validation"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n")
    data = DataConfig(source=str(tmp_path / "pairs.csv"), image_size=6, csv=CsvConfig())
    return Settings(data, EvaluationConfig())


def test_csv_sets_count_repeated_pictures_and_captions_once(csv_settings):
    validation, train = load_sets(csv_settings.data, most=100)
    assert (validation.name, train.name) == ("validation", "train")
    assert len(validation.images) == 6
    assert sorted(validation.texts) == sorted([*(f"{n} square" for n in NAMES), "red thing"])
    red = validation.text_ids[[text.startswith("red") for text in validation.texts]]
    assert len(set(red.tolist())) == 1


def test_a_perfect_encoder_scores_one_and_stands_beside_chance_and_its_untrained_twin(csv_settings):
    results = evaluate(ColourEncoder(), csv_settings)
    assert results["validation/image_to_text/recall@1"] == 1.0
    assert results["validation/text_to_image/recall@1"] == 1.0
    assert results["validation/image_to_text/median_rank"] == 1.0
    assert results["validation/image_to_text/queries"] == 6
    assert results["validation/image_to_text/gallery"] == 7
    assert results["validation/text_to_image/queries"] == 7
    # Red has two right captions of seven, the others one.
    chance = (5 * 1 / 7 + 2 / 7) / 6
    assert results["validation/image_to_text/recall@1_chance"] == pytest.approx(chance)
    assert results["validation/image_to_text/recall@1_random_init"] == pytest.approx(chance)
    assert results["validation/geometry/alignment"] == pytest.approx(0, abs=1e-6)
    assert results["validation/geometry/uniformity_images"] < -0.1
    assert results["validation/geometry/uniformity_images_random_init"] == pytest.approx(0)
    assert results["validation/split"] == "validation"
    assert "train/image_to_text/recall@1" in results


def test_quick_is_the_same_code_on_fewer_pictures_with_numbers_only(csv_settings):
    config = dataclasses.replace(csv_settings.eval, quick_pictures=3)
    results = evaluate(ColourEncoder(), dataclasses.replace(csv_settings, eval=config), quick=True)
    assert results["validation/image_to_text/queries"] == 3
    assert all(isinstance(value, float) for value in results.values())
    assert not [name for name in results if name.endswith("_random_init")]
    assert "validation/image_to_text/recall@1_chance" in results


def test_a_file_without_an_evaluation_split_is_still_trained_on(csv_settings, tmp_path):
    (tmp_path / "all.csv").write_text("image,caption,split\nred.png,red square,train\n")
    data = dataclasses.replace(csv_settings.data, source=str(tmp_path / "all.csv"))
    assert [one.name for one in load_sets(data, most=10)] == ["train"]


def colour_set(name: str, concepts, *, held_out: bool = False) -> EvaluationSet:
    images = np.stack([np.full((4, 4, 3), COLOURS[i], np.uint8) for i in concepts])
    shown = concepts if held_out else range(len(NAMES))
    return EvaluationSet(
        name=name,
        images=images,
        keys=[NAMES[i] for i in concepts],
        ids=np.array(concepts, np.int32),
        texts=[NAMES[i] for i in shown],
        text_ids=np.array(shown, np.int32),
        labels=np.array([i % 2 for i in concepts], np.int32),
        classes={0: "red", 1: "green"},
    )


@pytest.fixture
def emoji_like(monkeypatch):
    """Sets shaped like those of the emoji."""
    sets = [
        colour_set("unseen_artist", [0, 1, 2, 3]),
        colour_set("unseen_concepts", [4, 5], held_out=True),
        colour_set("train", [0, 1, 2, 3]),
    ]
    known = KnownPictures(sets[2].images, sets[2].ids, sets[2].labels)
    monkeypatch.setattr(suite, "load_sets", lambda data, *, most: [s.limited(most) for s in sets])
    monkeypatch.setattr(suite, "known_emoji", lambda data: known)
    return Settings(DataConfig(), EvaluationConfig(templates="emoji"))


def test_raw_pixels_name_seen_concepts_and_classify_unseen_ones(emoji_like):
    results = evaluate(ColourEncoder(), emoji_like)
    assert results["unseen_artist/image_to_text/recall@1_raw_pixels"] == 1.0
    assert results["unseen_artist/text_to_image/recall@1_raw_pixels"] == 1.0
    assert results["unseen_artist/zero_shot/top1_raw_pixels"] == 1.0
    assert "unseen_concepts/image_to_text/recall@1_raw_pixels" not in results
    assert 0 <= results["unseen_concepts/zero_shot/top1_raw_pixels"] <= 1
    assert "train/image_to_text/recall@1_raw_pixels" not in results


def test_D04_the_result_records_sizes_split_and_templates(emoji_like):
    results = evaluate(ColourEncoder(), emoji_like)
    recorded = {
        name: results[f"unseen_artist/zero_shot/{name}"]
        for name in ("images", "classes", "templates", "texts", "template_set")
    }
    assert recorded == {
        "images": 4, "classes": 2, "templates": 5, "texts": 10, "template_set": "emoji",
    }  # fmt: skip
    assert results["unseen_artist/split"] == "unseen_artist"
    assert results["unseen_concepts/image_to_text/gallery"] == 2
    assert results["unseen_artist/image_to_text/gallery"] == 6


def test_each_text_is_encoded_once(emoji_like):
    encoder = ColourEncoder()
    evaluate(encoder, emoji_like)
    assert len(encoder.encoded) == len(set(encoder.encoded))


def test_results_do_not_depend_on_blocks(emoji_like):
    small = EvaluationConfig(templates="emoji", block_rows=1, block_cols=2)
    assert evaluate(ColourEncoder(), emoji_like) == evaluate(
        ColourEncoder(), dataclasses.replace(emoji_like, eval=small)
    )


def test_the_table_shows_numbers_beside_chance_and_baselines(emoji_like):
    results = evaluate(ColourEncoder(), emoji_like)
    rows = table_rows(results)
    assert [(row.group, row.task) for row in rows[:4]] == [
        ("unseen_artist", "image_to_text"),
        ("unseen_artist", "text_to_image"),
        ("unseen_artist", "zero_shot"),
        ("unseen_concepts", "image_to_text"),
    ]
    assert rows[-1].group == "train"
    text = format_table(results)
    first = next(line for line in text.splitlines() if "unseen artist" in line)
    assert first.split()[2:] == [
        "image", "→", "text", "4", "6", "1.000", "1.000", "1", ".167", "1.000", ".167",
    ]  # fmt: skip
    geometry = next(line for line in text.splitlines() if line.startswith("unseen concepts  0"))
    assert geometry.split()[2:5] == ["0.00", "(untrained", "0.00)"]
    assert "Nothing was evaluated" in format_table({})
    line = format_line(results, most=2)
    assert line == "unseen artist image → text 1.000, unseen concepts image → text 1.000"
    other = {"test/similarity/spearman": -0.25, "test/similarity/pairs": 9.0}
    assert format_line(other) == "test similarity −0.250"


def test_no_number_is_minus_nothing():
    text = format_table({"a/geometry/information_bound": -0.001, "a/geometry/modality_gap": -1.5})
    assert "−1.50" in text
    assert re.search(r"(?<![−-])0\.00", text)


def test_the_table_is_shown_whatever_a_file_says():
    text = format_table({
        "[b]/knn/top1": "abc", "[b]/knn/top1_low": math.nan, "[b]/knn/images": "many",
        "[b]/image_to_text/recall@1": 0.5, "[b]/image_to_text/queries": math.inf,
        "[b]/geometry/alignment": "x", "[b]/geometry/modality_gap": "y",
    })  # fmt: skip
    assert "[b]" in text
    assert "top1_low undefined" in text
    text = format_table({"set/few_shot/top1@5": 0.5, "set/few_shot/images@5": 1200.0})
    assert "1,200" in text


def test_numbers_are_printed_with_three_digits():
    assert [share(x) for x in (0.4512, 0.0005, 1.0, 0.99999, None, 0.0)] == [
        ".451", ".0005", "1.000", "1.000", "", ".0000",
    ]  # fmt: skip


def test_every_subgroup_has_a_name_of_its_own():
    labels, names = emoji_classes()
    subgroups = {concept.subgroup for concept in load_concepts()}
    assert set(SUBGROUP_NAMES) == subgroups
    assert len(set(SUBGROUP_NAMES.values())) == len(subgroups) == len(names)
    dog = next(c for c in load_concepts() if c.name == "dog")
    assert names[int(labels[dog.index])] == "animal, mammal"


def test_pictures_are_taken_evenly():
    np.testing.assert_array_equal(evenly(4, 10), np.arange(4))
    np.testing.assert_array_equal(evenly(10, 3), [0, 3, 6])


def test_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match="quick_pictures = 0"):
        EvaluationConfig(quick_pictures=0)


def test_emoji_sets():
    """The real sets: who is unseen, and what the galleries are."""
    # Kept between runs: preparing the pictures takes longer than everything else here.
    cache = pathlib.Path(tempfile.gettempdir()) / f"contrastive-tests-{os.getuid()}"
    data = DataConfig(cache=str(cache), image_size=16)
    sets = {one.name: one for one in load_sets(data, most=40)}
    assert {"unseen_artist", "unseen_concepts", "unseen_both", "train"} <= set(sets)
    everything = set(sets["unseen_artist"].text_ids.tolist())
    held_out = set(sets["unseen_concepts"].text_ids.tolist())
    assert len(everything) > 1_900
    assert 150 < len(held_out) < 250
    assert set(sets["unseen_both"].text_ids.tolist()) == held_out
    assert set(sets["train"].text_ids.tolist()) == everything
    for name, one in sets.items():
        assert one.images.shape == (40, 16, 16, 3)
        style = "noto" if name in ("unseen_concepts", "train") else "twemoji"
        if not name.endswith("openmoji"):
            assert all(key.startswith(f"{style}/") for key in one.keys)
        unseen = name in ("unseen_concepts", "unseen_both", "unseen_both_openmoji")
        assert all((int(i) in held_out) == unseen for i in one.ids)
        assert one.labels is not None
        assert one.classes is not None
        assert set(one.labels.tolist()) <= set(one.classes)
    choosing = dataclasses.replace(data, emoji=EmojiConfig(validation=True))
    aside, train = load_sets(choosing, most=40)  # no test set
    assert (aside.name, train.name) == ("validation_concepts", "train")
    assert set(aside.ids.tolist()) <= set(aside.text_ids.tolist())
    assert not set(aside.text_ids.tolist()) & (held_out | set(train.ids.tolist()))
