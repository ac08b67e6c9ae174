"""Training pictures in their own proportions: patches, places and augmentation."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from contrastive.data.augment import affine_coefficients, move, move_in_proportion
from contrastive.data.config import DataConfig
from contrastive.data.draws import example_keys
from contrastive.data.examples import blank_pictures
from contrastive.data.picture_config import (
    AugmentConfig,
    CropConfig,
    RandAugmentConfig,
    ResizeConfig,
    StackConfig,
    ViewsConfig,
)
from contrastive.data.pipeline import BatchLoader
from contrastive.data.records import InMemorySource, Record
from contrastive.data.synthetic import SyntheticLoader, synthetic_tokenizer
from contrastive.data.tokenizer import train_tokenizer
from contrastive.data.transforms import (
    decode_image,
    evaluation_image,
    naflex_cut,
    naflex_grid,
    naflex_pixels,
)
from contrastive.errors import ConfigError

SIZES = ((24, 24), (48, 16), (16, 48), (57, 20), (90, 23), (20, 60), (31, 40), (12, 12))
STILL = AugmentConfig(
    **dict.fromkeys((field.name for field in dataclasses.fields(AugmentConfig)), 0.0)
)


def picture(width, height, seed=0):
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def records():
    out = []
    for i, size in enumerate(SIZES):
        data = io.BytesIO()
        picture(*size, seed=i).save(data, "PNG")
        record = Record(image=data.getvalue(), caption=f"thing {i}", keywords=[], id=-1, key=str(i))
        out.append(record)
    return out


def settings(**changes):
    plain = {"preprocessing": "naflex", "image_size": 16, "resize": ResizeConfig(patch=4)}
    return DataConfig(**(plain | {"text_length": 8, "augment": STILL} | changes))


def batches(records, config, count=1, seed=0):
    tokenizer = train_tokenizer([r["caption"] for r in records], length=8, config=config.tokenizer)
    loader = BatchLoader(
        InMemorySource(records), config, tokenizer, batch_size=len(records), seed=seed
    )
    found = [next(loader) for _ in range(count)]
    loader.close()
    return found


def test_without_augmentation_they_are_those_of_evaluation(records):
    config = settings()
    (batch,) = batches(records, config)
    assert batch["image"].shape == (8, 16, 3 * 16 + 4)
    assert batch["image"].dtype == np.uint8
    grids = set()
    for row, number in zip(batch["image"], batch["example"].tolist(), strict=True):
        image = decode_image(records[number]["image"])
        wanted = evaluation_image(image, 16, "naflex", config.resize)
        np.testing.assert_array_equal(row, wanted)
        columns, rows = naflex_grid(*SIZES[number], 4, 16)
        grids.add((columns, rows))
        assert (row[:, -2] > 0).sum() == rows * columns
        shown = naflex_pixels(row, 4)
        assert shown.shape == (4 * rows, 4 * columns, 3)
        resized = image.resize((4 * columns, 4 * rows), Image.Resampling.BICUBIC)
        assert np.abs(shown.astype(int) - np.asarray(resized)).max() <= 2
    assert len(grids) >= 4
    (blank,) = blank_pictures(config)  # in the place of what cannot be read
    assert naflex_cut(np.asarray(blank), 16, 4).shape == (16, 52)


AUGMENTED = {
    "default": {"augment": AugmentConfig(cutout=0.3, flip=0.5)},
    "crop": {"crop": CropConfig(area=(0.3, 0.6))},
    "rand": {"rand_augment": RandAugmentConfig(operations=2)},
    "stack": {"stack": StackConfig(name="simclr"), "augment": AugmentConfig()},
}


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmentation_is_drawn_anew_and_belongs_to_the_example(records, name):
    """Grids stay (but for random parts), pixels change from epoch to epoch, and a picture does not
    depend on those beside it."""
    config = settings(**AUGMENTED[name])
    first, second = batches(records, config, count=2)
    again, _ = batches(records, config, count=2)
    np.testing.assert_array_equal(first["image"], again["image"])
    for batch in (first, second):
        for row, number in zip(batch["image"], batch["example"].tolist(), strict=True):
            count = int((row[:, -2] > 0).sum())
            assert row[:count].any()
            assert not row[count:].any()
            columns, rows = naflex_grid(*SIZES[number], 4, 16)
            if name not in ("crop", "stack"):
                assert tuple(row[0, -2:]) == (rows, columns)
    one, two = (batch["image"][np.argsort(batch["example"])] for batch in (first, second))
    # Of long pictures no random part has an allowed ratio: the middle is taken each time.
    assert (one != two).any(axis=(1, 2)).mean() >= (0.5 if name == "crop" else 1.0)


def test_both_views_keep_proportions(records):
    config = settings(pairs="views", stack=StackConfig(name="moco_v2"), augment=AugmentConfig())
    (batch,) = batches(records, config)
    assert batch["view_a"].shape == batch["view_b"].shape == (8, 16, 52)
    assert (batch["view_a"] != batch["view_b"]).any(axis=(1, 2)).all()


def test_geometry_of_a_square_is_that_of_squares():
    keys = example_keys(0, np.arange(4))
    config = AugmentConfig(flip=0.5, rotate=40.0, shift=0.3)
    image = picture(24, 24)
    for coefficients in affine_coefficients(keys, config):
        a, b = move(image, coefficients, 24), move_in_proportion(image, coefficients)
        assert np.abs(np.asarray(a, int) - np.asarray(b, int)).max() <= 1


def test_geometry_keeps_right_angles():
    """A wide picture turned by a quarter of a circle: rows become columns without a stretch."""
    image = picture(48, 16)
    quarter = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]])
    turned = np.asarray(move_in_proportion(image, quarter))
    assert turned.shape == (16, 48, 3)
    middle = np.asarray(image.crop((16, 0, 32, 16)).rotate(-90))
    difference = np.abs(turned[1:-1, 17:31].astype(int) - middle[1:-1, 1:-1])
    assert difference.mean() < 3
    mirrored = np.array([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(
        np.asarray(move_in_proportion(image, mirrored)), np.asarray(ImageOps.mirror(image))
    )
    moved = np.array([[1.0, 0.0, 0.25], [0.0, 1.0, 0.0]])  # by a quarter of its own width
    shifted = np.asarray(move_in_proportion(image, moved))
    np.testing.assert_array_equal(shifted[:, :36], np.asarray(image)[:, 12:])


def test_synthetic_pairs_fill_the_grid():
    config = settings(source="synthetic", augment=AugmentConfig())
    loader = SyntheticLoader(config, synthetic_tokenizer(config), batch_size=2, seed=0)
    image = next(loader)["image"]
    assert image.shape == (2, 16, 52)
    assert (image[..., -2:] == 4).all()


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"decoding": "train"}, "decoding = 'train' makes squares"),
        ({"image_size": 18}, "no multiple of"),
    ],
)
def test_contradictions(changes, words):
    with pytest.raises(ConfigError, match=words):
        settings(**changes)


def test_small_crops_need_another_tower():
    from contrastive.recipe import Recipe
    from contrastive.towers import NaFlexConfig, TwoTowerConfig

    small = ViewsConfig(small=2, small_size=8)
    config = settings(pairs="views", views=small)
    model = TwoTowerConfig(image=NaFlexConfig(patch_size=4))
    with pytest.raises(ConfigError, match="other towers take pictures of one size"):
        Recipe(name="x", total_steps=1, data=config, model=model)
    with pytest.raises(ConfigError, match="go together; given are 'naflex' and 'conv'"):
        Recipe(name="x", total_steps=1, data=settings())
    with pytest.raises(ConfigError, match="go together; given are 'square' and 'naflex'"):
        Recipe(name="x", total_steps=1, model=model)
    other = TwoTowerConfig(image=NaFlexConfig(patch_size=8))
    with pytest.raises(ConfigError, match=r"patch = 4 has to be that of the tower, .* = 8"):
        Recipe(name="x", total_steps=1, data=settings(), model=other)
