"""SimCLR's and MoCo's stacks against plain float64 arithmetic, and their numbers."""

import colorsys
import dataclasses

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from contrastive.data import stacks
from contrastive.data.augment import augment_as
from contrastive.data.config import AugmentConfig, CropConfig, DataConfig, StackConfig
from contrastive.data.draws import example_keys, uniform
from contrastive.data.stacks import STACKS, jitter, jitter_factors, turn_hue
from contrastive.errors import ConfigError

LUMA = np.array([0.299, 0.587, 0.114])
NOTHING = stacks.Stack((1.0, 1.0), 0.0, 0.0, 0.0, 0.0, 0.0, grayscale=0.0, flip=0.0)


def photo(seed=0, side=24):
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    return small.resize((side, side), Image.Resampling.BICUBIC)


def pixels(image):
    return np.asarray(image).astype(np.float64)


def plain_change(x, change, factor):
    """Brightness, contrast, saturation as formulas."""
    grey = (x @ LUMA)[..., None]
    toward = {0: 0.0 * x, 1: np.full_like(x, round(grey.mean())), 2: grey + 0.0 * x}[change]
    return np.clip(toward + factor * (x - toward), 0, 255)


@pytest.mark.parametrize("change", [0, 1, 2], ids=["brightness", "contrast", "saturation"])
@pytest.mark.parametrize("factor", [0.2, 0.7, 1.0, 1.6])
def test_factors_are_the_formulas(change, factor):
    factors = [0.0, 0.0, 0.0, 0.0]
    factors[change] = factor
    found = pixels(jitter(photo(), [change], factors))
    assert np.abs(found - plain_change(pixels(photo()), change, factor)).max() <= 2.0


@pytest.mark.parametrize("turn", [-0.4, -0.05, 0.1, 0.5])
def test_hue_turns_around_the_circle(turn):
    image = photo(1)
    wanted = np.empty((24, 24, 3))
    for place in np.ndindex(24, 24):
        h, s, v = colorsys.rgb_to_hsv(*(pixels(image)[place] / 255))
        wanted[place] = np.array(colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)) * 255
    off = np.abs(pixels(turn_hue(image, turn)) - wanted)
    assert off.max() <= 14  # Pillow's hues are whole numbers of 255
    assert off.mean() < 2
    assert np.abs(pixels(image) - wanted).mean() > 10


def test_changes_follow_the_order_that_is_given():
    image, factors = photo(2), [1.8, 0.3, 1.7, 0.0]
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        wanted = pixels(image)
        for change in order:
            wanted = plain_change(wanted, change, factors[change])
        assert (
            np.abs(pixels(jitter(image, order, factors)) - wanted).max() <= 6
        )  # three roundings, two of them enlarged
    first, second = (pixels(jitter(image, o, factors)) for o in ([0, 1], [1, 0]))
    assert np.abs(first - second).max() > 20


def test_blur_is_a_gaussian():
    stack = NOTHING._replace(blur=(1.0, 0.0))
    keys = example_keys(0, np.arange(8))
    sigmas = 0.1 + 1.9 * uniform(keys, "stack blur", 1)[:, 0]
    assert sigmas.max() > 1.5
    found = stacks.change_colours([photo(3)] * 8, keys, stack, 0)
    for image, sigma in zip(found, sigmas, strict=True):
        wanted = ndimage.gaussian_filter(pixels(photo(3)), (sigma, sigma, 0), mode="nearest")
        assert np.abs(pixels(image) - wanted).mean() < 1.5
        assert np.abs(pixels(image) - wanted).max() < 12
    untouched = stacks.change_colours([photo(3)] * 8, keys, stack, 1)
    assert all(np.array_equal(pixels(image), pixels(photo(3))) for image in untouched)


def test_grayscale_and_solarization():
    keys = example_keys(0, np.arange(2))
    grey = stacks.change_colours([photo(4)] * 2, keys, NOTHING._replace(grayscale=1.0), 0)[0]
    assert np.abs(pixels(grey) - (pixels(photo(4)) @ LUMA)[..., None]).max() <= 1
    x = pixels(photo(4))
    turned = stacks.change_colours([photo(4)] * 2, keys, NOTHING._replace(solarize=(0.0, 1.0)), 1)[
        0
    ]
    np.testing.assert_array_equal(pixels(turned), np.where(x < 128, x, 255 - x))


def test_shares_and_ranges_are_those_of_the_method():
    keys, count = example_keys(0, np.arange(4000)), 4000
    dark = Image.new("RGB", (2, 1), (10, 20, 30))
    dark.putpixel((1, 0), (200, 20, 30))
    stack = STACKS["simclr"]
    mirrored = stacks.mirror([dark] * count, keys, stack)
    assert abs(np.mean([image.getpixel((0, 0)) != (10, 20, 30) for image in mirrored]) - 0.5) < 0.03
    u = uniform(keys, "stack factors", 4)
    factors = np.array([jitter_factors(row, stack) for row in u])
    for column, (low, high) in enumerate([(0.2, 1.8)] * 3 + [(-0.2, 0.2)]):
        assert low <= factors[:, column].min() < low + 0.01
        assert high - 0.01 < factors[:, column].max() <= high
    strong = stack.scaled(2.0, blur=False)
    assert strong.blur == (0.0, 0.0)
    assert strong.hue == 0.4
    below = [jitter_factors(row, strong)[0] for row in u]
    assert 0 <= min(below) < 0.01  # factors are never negative
    orders = uniform(keys, "stack order", 4).argsort(axis=1)
    _, times = np.unique(orders, axis=0, return_counts=True)
    assert len(times) == 24
    assert ((times - count / 24) ** 2 / (count / 24)).sum() < 50  # chi square, 23 degrees
    chosen = uniform(keys, "stack", 4) < np.array([0.8, 0.2, 0.5, 0.0])
    np.testing.assert_allclose(chosen.mean(axis=0), [0.8, 0.2, 0.5, 0.0], atol=0.03)
    coloured = stacks.change_colours([dark] * 500, keys[:500], stack._replace(blur=(0, 0)), 0)
    unchanged = np.mean([np.array_equal(pixels(image), pixels(dark)) for image in coloured])
    assert abs(unchanged - 0.2 * 0.8) < 0.05  # neither jittered nor grey


def test_the_published_numbers():
    """Chen et al. 2020a (appendix A), He et al. 2020, Chen et al. 2020b, Chen et al. 2021."""
    found = {name: (s.area, s.jitter, s[2:6], s.grayscale, s.blur) for name, s in STACKS.items()}
    assert found == {
        "simclr": ((0.08, 1.0), 0.8, (0.8, 0.8, 0.8, 0.2), 0.2, (0.5, 0.5)),
        "moco_v1": ((0.2, 1.0), 1.0, (0.4, 0.4, 0.4, 0.4), 0.2, (0.0, 0.0)),
        "moco_v2": ((0.2, 1.0), 0.8, (0.4, 0.4, 0.4, 0.1), 0.2, (0.5, 0.5)),
        "moco_v3": ((0.08, 1.0), 0.8, (0.4, 0.4, 0.2, 0.1), 0.2, (1.0, 0.1)),
    }
    assert STACKS["moco_v3"].solarize == (0.0, 0.2)


def test_what_happens_to_an_example_does_not_depend_on_the_others():
    stack = STACKS["moco_v2"]
    images, keys = [photo(i) for i in range(6)], example_keys(1, np.arange(6))
    whole = augment_as(stack, images, keys)
    assert whole.dtype == np.uint8
    for part in (slice(0, 2), slice(2, 6)):
        np.testing.assert_array_equal(augment_as(stack, images[part], keys[part]), whole[part])
    assert (augment_as(stack, images, example_keys(2, np.arange(6))) != whole).any()


def test_a_stack_takes_the_place_of_crop_and_augment():
    config = DataConfig(stack=StackConfig(name="moco_v2", strength=0.5))
    assert config.random_part == CropConfig(area=(0.2, 1.0))
    assert config.room == config.image_size
    assert config.stack.stack.hue == 0.05
    for other in ({"crop": CropConfig(area=(0.5, 1.0))}, {"augment": AugmentConfig(zoom=0.0)}):
        with pytest.raises(ConfigError, match=r"config\.data\.\w+ has no effect.*config\.data\.st"):
            dataclasses.replace(config, **other)
    with pytest.raises(ConfigError, match=r"no effect without config\.data\.stack\.name"):
        StackConfig(strength=0.5)
    with pytest.raises(ConfigError, match="between 0 and 2"):
        StackConfig(name="simclr", strength=3.0)
