"""RandAugment's operations against plain computations, and how they are drawn."""

import numpy as np
import pytest
from PIL import Image

from contrastive.data.config import RandAugmentConfig
from contrastive.data.draws import example_keys, uniform
from contrastive.data.rand_augment import OPERATIONS, rand_augment
from contrastive.errors import ConfigError

LUMA = np.array([0.299, 0.587, 0.114])
SIDE = 33
PAPER = (  # Cubuk et al. 2020, section 3
    "identity", "auto_contrast", "equalize", "rotate", "solarize", "color", "posterize",
    "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y",
)  # fmt: skip


def photo(seed=0):
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(30, 220, (5, 5, 3), dtype=np.uint8))
    return small.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def pixels(image):
    return np.asarray(image).astype(np.float64)


def nearest(x, source):
    """The picture where ``source(x, y)`` says, at pixel centres; grey comes in from outside."""
    out = np.full_like(x, 128.0)
    for row, column in np.ndindex(SIDE, SIDE):
        across, down = source(column + 0.5, row + 0.5)
        if 0 <= across < SIDE and 0 <= down < SIDE:
            out[row, column] = x[int(down), int(across)]
    return out


def turned(x, angle):
    cos, sin, middle = np.cos(np.radians(angle)), np.sin(np.radians(angle)), SIDE / 2
    return nearest(  # counter-clockwise, with y downward
        x,
        lambda a, b: (
            cos * (a - middle) - sin * (b - middle) + middle,
            sin * (a - middle) + cos * (b - middle) + middle,
        ),
    )


def equalized(x):
    """Each channel's distribution function, scaled, as the paper's code computes it."""
    out = np.empty_like(x)
    for channel in range(3):
        values = x[..., channel].astype(int)
        counts = np.bincount(values.ravel(), minlength=256)
        step = (counts.sum() - counts[counts > 0][-1]) // 255
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])
        out[..., channel] = np.clip((before + step // 2) // max(step, 1), 0, 255)[values]
    return out


def stretched(x):
    low, high = x.min(axis=(0, 1)), x.max(axis=(0, 1))
    return np.clip(np.trunc((x - low) * (255.0 / (high - low))), 0, 255)


def blend(x, toward, factor):
    return np.clip(toward + factor * (x - toward), 0, 255)


def smoothed(x):
    """3 x 3 with weight 5 in the middle; the border stays."""
    out = x.copy()
    total = sum(x[i : SIDE - 2 + i, j : SIDE - 2 + j] for i in range(3) for j in range(3))
    out[1:-1, 1:-1] = (total + 4 * x[1:-1, 1:-1]) / 13
    return out


def reference(name, x, m):
    """What the operation does at strength m (1 = AutoAugment's largest), in float64."""
    grey = (x @ LUMA)[..., None] + 0 * x
    bits = 2.0 ** (8 - max(8 - round(4 * abs(m)), 1))
    factor = max(1 + 0.9 * m, 0)
    move = m * SIDE * 150 / 331
    return {
        "identity": lambda: x,
        "auto_contrast": lambda: stretched(x),
        "equalize": lambda: equalized(x),
        "rotate": lambda: turned(x, 30 * m),
        "solarize": lambda: np.where(x < 256 - round(256 * abs(m)), x, 255 - x),
        "color": lambda: blend(x, grey, factor),
        "posterize": lambda: np.floor(x / bits) * bits,
        "contrast": lambda: blend(x, np.full_like(x, round(grey.mean())), factor),
        "brightness": lambda: blend(x, 0 * x, factor),
        "sharpness": lambda: blend(x, smoothed(x), factor),
        "shear_x": lambda: nearest(x, lambda a, b: (a + 0.3 * m * b, b)),
        "shear_y": lambda: nearest(x, lambda a, b: (a, b + 0.3 * m * a)),
        "translate_x": lambda: nearest(x, lambda a, b: (a + move, b)),
        "translate_y": lambda: nearest(x, lambda a, b: (a, b + move)),
    }[name]()


def test_the_operations_are_the_papers():
    assert tuple(OPERATIONS) == PAPER


@pytest.mark.parametrize("strength", [-1.0, -0.45, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("name", PAPER)
def test_operations_are_their_definitions(name, strength):
    found = pixels(OPERATIONS[name](photo(), strength))
    off = np.abs(found - reference(name, pixels(photo()), strength))
    if name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y"):
        assert (off.max(axis=2) > 0).mean() < 0.02  # ties of the nearest pixel
    else:
        assert off.max() <= 2
    if name != "identity":
        assert np.abs(found - pixels(photo())).mean() > 0.2


@pytest.mark.parametrize("name", [n for n in PAPER if n not in ("auto_contrast", "equalize")])
def test_magnitude_0_changes_nothing_and_more_is_more(name):
    x = pixels(photo())
    change = [np.abs(pixels(OPERATIONS[name](photo(), m)) - x).mean() for m in (0.0, 0.2, 1.0)]
    assert change[0] <= 0.01
    if name != "identity":
        assert change[0] < change[1] < change[2]


def test_operations_are_drawn_evenly_and_one_after_another():
    keys, count = example_keys(0, np.arange(3000)), 3000
    config = RandAugmentConfig(operations=2, magnitude=9.0)
    numbers = (uniform(keys, "rand augment", 2) * 14).astype(int)
    times = np.bincount(numbers.ravel(), minlength=14)
    assert ((times - 2 * count / 14) ** 2 / (2 * count / 14)).sum() < 40  # 13 degrees
    signs = np.where(uniform(keys, "rand augment signs", 2) < 0.5, -1, 1)
    found = rand_augment([photo()] * 40, keys[:40], config)
    for i, image in enumerate(found):
        wanted = photo()
        for number, sign in zip(numbers[i], signs[i], strict=True):
            wanted = OPERATIONS[PAPER[number]](wanted, 0.9 * sign)
        np.testing.assert_array_equal(pixels(image), pixels(wanted))
    again = rand_augment([photo()] * 5, keys[3:8], config)
    for image, wanted in zip(again, found[3:8], strict=True):
        np.testing.assert_array_equal(pixels(image), pixels(wanted))


@pytest.mark.parametrize(
    "fields,words",
    [
        ({"operations": -1}, "operations = -1"),
        ({"operations": 2, "magnitude": 31.0}, "magnitude = 31"),
        ({"magnitude": 5.0}, "no effect without operations"),
    ],
)
def test_settings_that_cannot_be(fields, words):
    with pytest.raises(ConfigError, match=words):
        RandAugmentConfig(**fields)
