"""Published models' pictures, random parts, and the faster way to the same pixels."""

import dataclasses
import io
import pathlib
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from contrastive.data import fast, transforms
from contrastive.data.augment import random_part
from contrastive.data.config import AugmentConfig, CropConfig, DataConfig
from contrastive.data.draws import example_keys
from contrastive.data.examples import read_pictures
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.records import InMemorySource, SampleError
from contrastive.data.transforms import PIXEL_STATISTICS, evaluation_image, shaped
from contrastive.errors import ConfigError
from contrastive.recipe import load_recipe

ROOT = pathlib.Path(__file__).parents[2]
OFF = dict.fromkeys((f.name for f in dataclasses.fields(AugmentConfig)), 0.0)
needs_fast = pytest.mark.skipif(not fast.available(), reason="contrastive[fast] is not installed")


def photo(width, height, seed=0):
    """Soft shapes with some grain, in place of a photograph."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    grain = rng.normal(0, 6, soft.shape)
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8))


def jpeg(image, **options):
    data = io.BytesIO()
    image.save(data, "JPEG", **({"quality": 88} | options))
    return data.getvalue()


def test_B09_pixel_statistics():
    levels = np.array([0.0, 128.0, 255.0])[:, None] / 255.0
    expected = {
        "clip": [
            [-1.7922625, -1.7520971, -1.4802198],
            [0.0763361, 0.1688972, 0.3399486],
            [1.9303363, 2.0748838, 2.1458970],
        ],
        "siglip": [[-1.0] * 3, [0.0039216] * 3, [1.0] * 3],
    }
    for name, values in expected.items():
        mean, std = (np.array(x) for x in PIXEL_STATISTICS[name])
        np.testing.assert_allclose((levels - mean) / std, values, atol=5e-7)


def test_B09_the_model_is_held_to_the_statistics_of_the_pictures():
    spec = str(ROOT / "configs" / "emoji.py:clip")
    with pytest.raises(
        ConfigError, match=r"preprocessing = 'clip' goes with .*pixel_mean = \(0\.48"
    ):
        load_recipe(spec, ["--config.data.preprocessing=clip"])
    mean, std = PIXEL_STATISTICS["clip"]
    changes = ["--config.data.preprocessing=clip", f"--config.model.pixel_mean={mean}"]
    assert load_recipe(spec, [*changes, f"--config.model.pixel_std={std}"])
    assert load_recipe(spec, ["--config.data.preprocessing=siglip"])  # 0.5 is the default


def torchvision_clip(image, size):
    """Resize(size, bicubic), CenterCrop(size), as torchvision computes them on Pillow images."""
    w, h = image.size
    short, long = min(w, h), max(w, h)
    wide = (size, int(size * long / short)) if w <= h else (int(size * long / short), size)
    image = image.resize((wide[0], h), Image.Resampling.BICUBIC)
    image = image.resize(wide, Image.Resampling.BICUBIC)
    left, top = round((wide[0] - size) / 2.0), round((wide[1] - size) / 2.0)
    return np.asarray(image.crop((left, top, left + size, top + size)))


@pytest.mark.parametrize("width,height", [(500, 375), (375, 500), (301, 300), (64, 64), (90, 41)])
def test_clip_pictures(width, height):
    image = photo(width, height)
    found = evaluation_image(image, 64, "clip")
    np.testing.assert_array_equal(found, torchvision_clip(image, 64))
    if width != height:
        assert (found != evaluation_image(image, 64, "square")).any()


def test_siglip_pictures_are_stretched():
    image = photo(300, 120)
    found = evaluation_image(image, 64, "siglip")
    wide = image.resize((64, 120), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(
        found, np.asarray(wide.resize((64, 64), Image.Resampling.BICUBIC))
    )


@pytest.mark.parametrize("rule", ["square", "clip", "siglip"])
def test_B11_extreme_shapes(rule):
    for size in ((1, 5000), (5000, 1), (1, 1), (2, 3)):
        image = Image.new("RGB", size, (10, 20, 30))
        tracemalloc.start()
        pixels = shaped(image, 224, rule)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert pixels.size == (224, 224)
        assert (np.asarray(pixels) == (10, 20, 30)).all()
        assert peak < 50e6
        box = random_part(*size, example_keys(0, np.arange(1)), CropConfig(area=(0.08, 1.0)))
        assert box[0] < box[2] <= size[0]
        assert box[1] < box[3] <= size[1]


def test_random_parts_have_the_area_and_ratio_that_are_set():
    config = CropConfig(area=(0.2, 0.6), ratio=(0.5, 2.0))
    keys = example_keys(3, np.arange(2000))
    boxes = np.array([random_part(400, 300, keys[i : i + 1], config) for i in range(2000)])
    widths, heights = (boxes[:, 2:] - boxes[:, :2]).T
    areas, ratios = widths * heights / 120_000, widths / heights
    assert 0.195 < areas.min() < 0.21
    assert 0.55 < areas.max() < 0.605
    assert 0.49 < ratios.min() < 0.55
    assert 1.9 < ratios.max() < 2.02
    assert abs(np.median(ratios) - 1.0) < 0.1  # as often wide as tall
    assert boxes[:, 0].min() == boxes[:, 1].min() == 0
    assert boxes[:, 2].max() == 400
    assert boxes[:, 3].max() == 300
    assert len({tuple(box) for box in boxes.tolist()}) > 1950
    narrow = CropConfig(area=(1.0, 1.0))  # nothing fits into 100 x 10: the middle part
    assert random_part(100, 10, keys[:1], narrow) == (43, 0, 56, 10)


def test_random_parts_stay_what_they_were():
    keys, config = example_keys(7, np.arange(4)), CropConfig(area=(0.08, 1.0))
    found = [random_part(500, 480, keys[i : i + 1], config) for i in range(4)]
    assert found == [
        (130, 103, 390, 329),
        (83, 13, 393, 321),
        (138, 40, 469, 303),
        (23, 58, 425, 475),
    ]


@pytest.mark.parametrize(
    "fields,words",
    [
        ({"area": (0.5, 0.2)}, "area"),
        ({"area": (0.0, 0.2)}, "area"),
        ({"area": (0.5, 1.0), "ratio": (2.0, 1.0)}, "ratio"),
        ({"ratio": (1.0, 1.0)}, "ratio has no effect"),
    ],
)
def test_settings_that_cannot_be(fields, words):
    with pytest.raises(ConfigError, match=words):
        CropConfig(**fields)


@pytest.mark.parametrize("check", ["before", "during"])
def test_parts_belong_to_the_example_and_change_every_epoch(make_records, check):
    class Indexed(InMemorySource):
        fingerprint = "x"

        def __init__(self, records):
            from contrastive.data.records import DataErrors

            super().__init__(records)
            self.errors = DataErrors()

    source = Indexed(make_records(8))
    config = DataConfig(
        image_size=8,
        text_length=8,
        check=check,
        crop=CropConfig(area=(0.1, 0.5)),
        augment=AugmentConfig(**OFF),
    )
    tokenizer = load_tokenizer(config, source)

    def batches(threads, parts):
        config_ = dataclasses.replace(config, threads=threads)
        loaders = [
            BatchLoader(
                source,
                config_,
                tokenizer,
                batch_size=8,
                seed=0,
                process_index=i,
                process_count=parts,
            )
            for i in range(parts)
        ]
        found = [[next(loader) for _ in range(2)] for loader in loaders]
        for loader in loaders:
            loader.close()
        return [np.concatenate([part[step]["image"] for part in found]) for step in range(2)], [
            np.concatenate([part[step]["example"] for part in found]) for step in range(2)
        ]

    images, examples = batches(0, 1)
    for threads, parts in ((3, 1), (1, 2)):
        for a, b in zip(images, batches(threads, parts)[0], strict=True):
            np.testing.assert_array_equal(a, b)
    first, second = (i[np.argsort(e)] for i, e in zip(images, examples, strict=True))
    assert (first != second).any(axis=(1, 2, 3)).all()


def paths(data, image_size=96, **crop):
    """The picture by each way of decoding."""
    for decoding in ("evaluation", "train", "train_fast"):
        config = DataConfig(
            image_size=image_size,
            decoding=decoding,
            augment=AugmentConfig(**OFF),
            crop=CropConfig(**crop),
        )
        key = example_keys(0, np.arange(1))
        yield np.asarray(read_pictures({"image": data}, config, key)[0]).astype(int)


@needs_fast
@pytest.mark.parametrize("crop", [{}, {"area": (0.3, 1.0)}], ids=["middle", "part"])
def test_fast_paths_are_close(crop):
    worst, off = 0, []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        width, height = (int(x) for x in rng.integers(60, 500, 2))
        exact, train, scaled = paths(jpeg(photo(width, height, seed)), **crop)
        assert exact.shape == train.shape == scaled.shape == (96, 96, 3)
        worst = max(worst, int(np.abs(exact - train).max()))
        off.append(np.abs(exact - scaled).mean())
        assert np.abs(exact - scaled).max() <= 30  # a shift by a pixel would be far more
    assert worst <= 2
    assert 0 < np.mean(off) < 1.5


@needs_fast
@pytest.mark.parametrize("side, eighths", [(163, 8), (164, 4), (326, 4), (327, 2), (653, 1)])
def test_scaled_decoding_leaves_most_of_the_wanted_pixels(side, eighths, monkeypatch):
    seen = []
    resize = fast._resize

    def spy(tools, pixels, box, target):
        seen.append(pixels.shape[:2])
        return resize(tools, pixels, box, target)

    monkeypatch.setattr(fast, "_resize", spy)
    data = jpeg(photo(side, side + 7))
    fast.read(data, [lambda w, h: ((0, 0, w, h), 96)], scaled=True)
    fast.read(data, [lambda w, h: ((0, 0, w, h), 96)])
    scaled = tuple(-(-n * eighths // 8) for n in (side + 7, side))
    assert seen == [scaled, (side + 7, side)]


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (33, 65), (224, 224)])
def test_the_fourth_byte_is_dropped_and_no_other(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 4), np.uint8)
    np.testing.assert_array_equal(fast._without_fourth(pixels), pixels[..., :3])
    part = pixels[shape[0] // 3 :, shape[1] // 3 :]
    np.testing.assert_array_equal(fast._without_fourth(part), part[..., :3])


@needs_fast
def test_what_the_fast_path_leaves_to_pillow():
    grey = jpeg(photo(120, 100).convert("L"))
    exif = Image.Exif()
    exif[0x0112] = 6
    for data in (
        grey,
        jpeg(photo(120, 100).convert("CMYK")),
        jpeg(photo(120, 100), exif=exif),
        jpeg(photo(120, 100), progressive=True),
        jpeg(photo(1, 700)),
        jpeg(photo(700, 1)),
    ):
        exact, train, scaled = paths(data)
        assert np.abs(exact - train).max() <= 2
        assert np.abs(exact - scaled).mean() < 2
    png = io.BytesIO()
    photo(50, 60).save(png, "PNG")
    exact, train, _ = paths(png.getvalue())
    np.testing.assert_array_equal(exact, train)


@needs_fast
def test_damaged_jpegs_are_errors_on_the_fast_path_too(monkeypatch):
    data = jpeg(photo(120, 100))
    cut = lambda width, height: ((0, 0, width, height), 32)  # noqa: E731
    for damaged in (data[: len(data) // 2], data[:20]):
        with pytest.raises(SampleError, match="decode error"):
            fast.read(damaged, [cut])
    huge = bytearray(data)
    at = huge.index(b"\xff\xc0")
    huge[at + 5 : at + 9] = (65_000).to_bytes(2, "big") * 2
    with pytest.raises(SampleError, match="image too large"):
        fast.read(bytes(huge), [cut])
    monkeypatch.setattr(transforms, "MAX_PIXELS", 99)
    with pytest.raises(SampleError, match="image too large: 120 x 100"):
        fast.read(data, [cut])


def test_without_the_packages_pillow_does_it(monkeypatch):
    monkeypatch.setattr(fast, "_tools", lambda: None)
    exact, train, scaled = paths(jpeg(photo(200, 150)))
    np.testing.assert_array_equal(exact, train)
    np.testing.assert_array_equal(exact, scaled)
