"""Every strength has its effect, zero has none, and draws belong to examples."""

import dataclasses
import functools

import numpy as np
import pytest
from PIL import Image

from contrastive.data import draws
from contrastive.data.augment import affine_coefficients, augment, colour_matrices, move
from contrastive.data.config import AugmentConfig
from contrastive.data.draws import example_keys, uniform
from contrastive.errors import ConfigError

FIELDS = [field.name for field in dataclasses.fields(AugmentConfig)]
OFF = dict.fromkeys(FIELDS, 0.0)
COLOUR = ["brightness", "contrast", "saturation", "hue", "grayscale"]
only = functools.partial(dict.__or__, OFF)


def config_of(**strengths):
    return AugmentConfig(**only(strengths))


def drawing(side=16):
    """A red disc beside the middle of a white square, a blue bar below."""
    y, x = np.mgrid[:side, :side] / side
    pixels = np.full((side, side, 3), 255, np.uint8)
    pixels[(x - 0.4) ** 2 + (y - 0.4) ** 2 < 0.06] = (200, 40, 30)
    pixels[(y > 0.75) & (y < 0.85) & (x > 0.2) & (x < 0.8)] = (30, 60, 180)
    return Image.fromarray(pixels)


def run(n=64, *, side=16, size=16, seed=0, **strengths):
    keys = example_keys(seed, np.arange(n))
    return augment([drawing(side)] * n, keys, config_of(**strengths), size).astype(float)


def test_everything_off_changes_nothing():
    assert (run() == np.asarray(drawing())).all()
    assert config_of().room(32) == 32
    assert config_of(zoom=0.1).room(32) == 48


@pytest.mark.parametrize("name", FIELDS)
def test_every_strength_has_an_effect_that_grows(name):
    small, large = (5.0, 40.0) if name in ("rotate", "hue") else (0.1, 0.8)
    plain = np.asarray(drawing()).astype(float)
    little = np.abs(run(256, **{name: small}) - plain).mean()
    much = np.abs(run(256, **{name: large}) - plain).mean()
    assert 0 < 1.5 * little < much


@pytest.mark.parametrize("name", FIELDS)
def test_draws_belong_to_the_example(name):
    strengths = {name: 30.0 if name in ("rotate", "hue") else 0.5}
    whole = run(12, **strengths)
    keys = example_keys(0, np.arange(12))
    for part in (slice(0, 5), slice(5, 12), slice(3, 4)):
        rows = augment([drawing()] * len(keys[part]), keys[part], config_of(**strengths), 16)
        assert (rows == whole[part]).all()
    assert (run(12, seed=1, **strengths) != whole).any()
    assert len({row.tobytes() for row in run(64, **{**strengths, "shift": 0.1})}) > 50


def test_a_strength_does_not_move_the_draws_of_another():
    assert (run(blur=0.0, cutout=0.5)[:, :4, :4] == run(cutout=0.5)[:, :4, :4]).all()
    grey = run(grayscale=0.5)
    both = run(grayscale=0.5, rotate=20.0)
    is_grey = [np.ptp(batch, axis=3).max(axis=(1, 2)) == 0 for batch in (grey, both)]
    np.testing.assert_array_equal(*is_grey)
    assert 20 < is_grey[0].sum() < 44


def test_identity_map_keeps_the_picture():
    same = move(drawing(), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), 16)
    np.testing.assert_array_equal(np.asarray(same), np.asarray(drawing()))


def test_affine_maps_have_the_meaning_of_their_fields():
    keys = example_keys(0, np.arange(2000))
    zoom = np.linalg.det(affine_coefficients(keys, config_of(zoom=0.5))[:, :, :2]) ** -0.5
    assert 1 / 1.5 <= zoom.min() < 0.68
    assert 1.48 < zoom.max() <= 1.5
    assert abs(np.log(zoom).mean()) < 0.02
    stretch = affine_coefficients(keys, config_of(stretch=0.3))
    ratio = stretch[:, 1, 1] / stretch[:, 0, 0]
    assert 1 / 1.3 <= ratio.min() < 0.78
    assert 1.29 < ratio.max() <= 1.3 + 1e-9
    np.testing.assert_allclose(np.linalg.det(stretch[:, :, :2]), 1.0)
    turn = affine_coefficients(keys, config_of(rotate=30.0))
    angle = np.degrees(np.arctan2(turn[:, 0, 1], turn[:, 0, 0]))
    assert -30 <= angle.min() < -29.5
    assert 29.5 < angle.max() <= 30
    shift = affine_coefficients(keys, config_of(shift=0.2))[:, :, 2]
    assert 0.199 < np.abs(shift).max() <= 0.2
    flip = affine_coefficients(keys, config_of(flip=0.25))[:, 0, 0]
    assert 0.2 < (flip < 0).mean() < 0.3
    # The centre stays the centre under everything but a shift.
    assert not affine_coefficients(keys, config_of(zoom=0.5, rotate=30.0, stretch=0.3))[
        :, :, 2
    ].any()


def test_a_shift_of_the_picture_is_a_shift():
    pixels = run(64, shift=0.25)
    red = (pixels[..., 1] < 100) & (pixels[..., 0] > 150)
    where = [np.argwhere(mask).mean(axis=0) for mask in red]
    offset = affine_coefficients(example_keys(0, np.arange(64)), config_of(shift=0.25))[:, :, 2]
    inside = [i for i in range(64) if np.abs(offset[i]).max() < 0.1]
    plain = np.argwhere(
        (np.asarray(drawing())[..., 1] < 100) & (np.asarray(drawing())[..., 0] > 150)
    )
    for i in inside:
        moved = where[i] - plain.mean(axis=0)
        np.testing.assert_allclose(moved, -16 * offset[i][::-1], atol=0.7)
    assert len(inside) > 5


def test_white_comes_in_from_outside():
    dark = Image.new("RGB", (16, 16))
    pixels = augment([dark] * 32, example_keys(0, np.arange(32)), config_of(shift=0.5), 16)
    assert set(np.unique(pixels[:, ::15, ::15])) == {0, 255}


def test_colour_matrices():
    keys = example_keys(0, np.arange(2000))
    grey = np.array([100.0, 100.0, 100.0])
    for strengths in ({"saturation": 0.9}, {"hue": 180.0}, {"grayscale": 1.0}):
        matrices = colour_matrices(keys, config_of(**strengths))
        np.testing.assert_allclose(grey @ matrices, np.tile(grey, (2000, 1)))
    brightness = (grey @ colour_matrices(keys, config_of(brightness=0.3)))[:, 0] / 100
    assert 0.7 <= brightness.min() < 0.71
    assert 1.29 < brightness.max() <= 1.3
    hue = colour_matrices(keys, config_of(hue=90.0))
    np.testing.assert_allclose(
        hue @ hue.transpose(0, 2, 1), np.tile(np.eye(3), (2000, 1, 1)), atol=1e-12
    )
    angle = np.degrees(np.arccos((np.trace(hue, axis1=1, axis2=2) - 1) / 2))
    assert 89 < angle.max() <= 90 + 1e-6
    assert (np.array([255.0, 0, 0]) @ hue)[:, 1].max() > 150  # red turns to green
    luma = np.array([0.299, 0.587, 0.114])
    plain = np.array([10.0, 200.0, 50.0])
    dull = plain @ colour_matrices(keys, config_of(saturation=1.0))
    np.testing.assert_allclose(dull @ luma, plain @ luma)
    spread = np.ptp(dull, axis=1) / 190
    assert spread.min() < 0.01
    assert spread.max() > 1.99


def test_contrast_turns_around_the_mean_grey():
    rng = np.random.default_rng(0)
    images = [
        Image.fromarray(rng.integers(100, 150, (16, 16, 3), dtype=np.uint8)) for _ in range(64)
    ]
    plain = np.stack([np.asarray(image) for image in images]).astype(float)
    pixels = augment(images, example_keys(0, np.arange(64)), config_of(contrast=0.5), 16).astype(
        float
    )
    luma = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(
        (pixels @ luma).mean(axis=(1, 2)), (plain @ luma).mean(axis=(1, 2)), atol=0.3
    )
    ratio = pixels.std(axis=(1, 2, 3)) / plain.std(axis=(1, 2, 3))
    assert 0.49 < ratio.min() < 0.56
    assert 1.44 < ratio.max() < 1.51


def test_colours_are_rounded_to_the_nearest():
    grey = Image.new("RGB", (4, 4), (101, 101, 101))
    keys = example_keys(0, np.arange(500))
    pixels = augment([grey] * 500, keys, config_of(brightness=0.2), 4)[:, 0, 0, 0]
    exact = 101 * colour_matrices(keys, config_of(brightness=0.2)).sum(axis=1)[:, 0]
    assert np.abs(pixels - exact).max() <= 0.501


def test_blur_keeps_flat_parts_and_softens_edges():
    pixels = run(200, blur=0.5)
    plain = np.asarray(drawing()).astype(float)
    changed = (pixels != plain).any(axis=(1, 2, 3))
    assert 70 < changed.sum() < 130
    assert (pixels[:, :2, 14:] == 255).all()
    for axis in (1, 2):
        edges = np.square(np.diff(pixels, axis=axis)).sum(axis=(1, 2, 3))[changed]
        sharp = np.square(np.diff(plain, axis=axis - 1)).sum()
        assert (edges < sharp).all()
        assert edges.min() < 0.5 * sharp


def test_cutout_is_a_rectangle_of_the_mean_colour():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    pixels = augment([image] * 300, example_keys(0, np.arange(300)), config_of(cutout=0.5), 16)
    plain, largest = np.asarray(image), 0
    for row in pixels:
        changed = np.argwhere((row != plain).any(axis=2))
        if len(changed):
            (top, left), (bottom, right) = changed.min(axis=0), changed.max(axis=0)
            box = row[top : bottom + 1, left : right + 1]
            assert (box == plain.mean(axis=(0, 1)).astype(np.uint8)).all()
            largest = max(largest, *box.shape[:2])
    assert largest in (7, 8)


def test_uniform_is_uniform_and_streams_are_independent():
    keys = example_keys(3, np.arange(20000))
    u = uniform(keys, "a", 3)
    assert u.min() >= 0
    assert u.max() < 1
    columns = np.concatenate([u, uniform(keys, "b", 2)], axis=1)
    counts = [np.histogram(column, bins=20, range=(0, 1))[0] for column in columns.T]
    assert all(((c - 1000.0) ** 2 / 1000.0).sum() < 50 for c in counts)  # chi square, 19 degrees
    correlation = np.corrcoef(np.concatenate([columns[:-1], columns[1:]], axis=1).T)
    assert np.abs(correlation - np.eye(10)).max() < 0.04
    other = uniform(example_keys(4, np.arange(20000)), "a", 3)
    assert abs(np.corrcoef(u[:, 0], other[:, 0])[0, 1]) < 0.04


def test_draws_never_change():
    """A resumed run draws what the first would have drawn, whatever NumPy is installed."""
    keys = example_keys(7, np.array([0, 1, 10**12]))
    assert keys.tolist() == [0xF33DC6BD55FFA86B, 0x9C01479161BC5D78, 0x12A208DE62A1790D]
    drawn = uniform(keys, "geometry", 2)[:, 1]
    assert drawn.tolist() == [0.11676125734138243, 0.13116145401319312, 0.4728084573410004]
    first, golden = 1234567, 0x9E3779B97F4A7C15  # the published sequence of SplitMix64
    states = np.array([(first + k * golden) % 2**64 for k in (1, 2)], np.uint64)
    assert draws._mix(states).tolist() == [6457827717110365317, 3203168211198807973]


@pytest.mark.parametrize(
    "fields,sentence",
    [
        ({"flip": 1.5}, r"augment\.flip = 1.5 has to lie between 0 and 1\."),
        ({"zoom": -0.1}, r"augment\.zoom = -0.1"),
        ({"hue": 181.0}, "between 0 and 180"),
        ({"cutout": float("nan")}, "cutout = nan"),
    ],
)
def test_strengths_that_cannot_be(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        AugmentConfig(**fields)
