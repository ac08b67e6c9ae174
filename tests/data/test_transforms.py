"""Decoding, colour modes, orientation, odd shapes."""

import contextlib
import io
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from contrastive.data import transforms
from contrastive.data.records import SampleError
from contrastive.data.transforms import (
    decode_image,
    evaluation_image,
    evaluation_images,
    resize,
    square,
)


def encoded(image, kind="PNG", **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def first_pixel(data):
    image = decode_image(data)
    assert image.mode == "RGB"
    return image.getpixel((0, 0))


def test_B06_exif_orientation_is_applied():
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (20, 0, 40, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("PNG", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        upright = decode_image(encoded(image, kind, exif=exif, **options))
        assert upright.size == (20, 40)
        assert [upright.getpixel(at) for at in ((0, 0), (19, 0), (0, 39))] == [
            (255, 0, 0),
            (255, 0, 0),
            (0, 0, 255),
        ]
    assert decode_image(encoded(image, "JPEG", exif=exif)).size == (20, 40)


def palette_with_transparency():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 255, 0])
    return encoded(image, transparency=0)


def animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


@pytest.mark.parametrize(
    "data,pixel",
    [
        (encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 0)), "JPEG"), (255, 255, 255)),
        (encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), (255, 0, 0)),
        (encoded(Image.new("L", (4, 4), 100)), (100, 100, 100)),
        (encoded(Image.new("LA", (4, 4), (100, 0))), (255, 255, 255)),
        (encoded(Image.new("LA", (4, 4), (100, 255))), (100, 100, 100)),
        (encoded(Image.new("1", (4, 4), 1)), (255, 255, 255)),
        (palette_with_transparency(), (255, 255, 255)),
        (encoded(Image.new("RGBA", (4, 4), (0, 0, 0, 0))), (255, 255, 255)),
        (encoded(Image.new("RGBA", (4, 4), (255, 0, 0, 51))), (255, 204, 204)),
        (animation(), (255, 0, 0)),
        (encoded(Image.fromarray(np.full((4, 4), 25700, np.uint16))), (100, 100, 100)),
        (encoded(Image.fromarray(np.full((4, 4), 25700, np.int32)), "TIFF"), (100, 100, 100)),
        (encoded(Image.fromarray(np.full((4, 4), 100.4, np.float32)), "TIFF"), (100, 100, 100)),
    ],
    ids=[
        "cmyk-white", "cmyk-red", "grey", "grey-clear", "grey-alpha", "one-bit", "palette-clear",
        "rgba-clear", "rgba-half", "animation", "grey-16", "int-32", "float-32",
    ],
)  # fmt: skip
def test_B07_odd_colour_modes_become_rgb_on_white(data, pixel):
    assert first_pixel(data) == pytest.approx(pixel, abs=1)


def test_B11_extreme_shapes_stay_small():
    for width, height in ((1, 5000), (5000, 1), (1, 1), (2, 3)):
        data = encoded(Image.new("RGB", (width, height), (10, 20, 30)))
        tracemalloc.start()
        pixels = evaluation_image(decode_image(data), 224)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert pixels.shape == (224, 224, 3)
        assert (pixels == (10, 20, 30)).all()
        assert peak < 50e6
    assert square(Image.new("RGB", (1, 5000))).size == (1, 1)


def truncated(kind):
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(pixels), kind)
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    "data",
    [b"", b"no picture", *(truncated(kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF"))],
)
def test_B01_damaged_pictures_are_errors_and_never_half_grey(data):
    with pytest.raises(SampleError) as error:
        decode_image(data)
    assert error.value.reason == "decode error"


def test_random_damage_gives_a_picture_or_a_sample_error():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "ICO"):
        whole = encoded(Image.fromarray(pixels), kind)
        for _ in range(60):
            data = bytearray(whole)
            for at in rng.integers(0, min(len(data), 400), 4):
                data[at] = rng.integers(0, 256)
            with contextlib.suppress(SampleError):
                assert decode_image(bytes(data)).mode == "RGB"


def test_pictures_that_claim_to_be_huge_are_refused_unread(monkeypatch):
    data = bytearray(encoded(Image.new("L", (10, 10))))
    data[16:24] = (65000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    with pytest.raises(SampleError, match="image too large"):
        decode_image(bytes(data))
    monkeypatch.setattr(transforms, "MAX_PIXELS", 99)
    with pytest.raises(SampleError, match="image too large: 10 x 10 pixels"):
        decode_image(encoded(Image.new("L", (10, 10))))


def test_middle_square():
    columns = np.arange(10, dtype=np.uint8)[None, :, None].repeat(4, 0).repeat(3, 2)
    wide = square(Image.fromarray(columns))
    assert np.asarray(wide)[0, :, 0].tolist() == [3, 4, 5, 6]
    tall = square(Image.fromarray(columns.transpose(1, 0, 2)))
    assert np.asarray(tall)[:, 0, 0].tolist() == [3, 4, 5, 6]


def test_resize_is_width_then_height_with_antialias():
    """Against the plain formula: Keys' cubic (a = -1/2), widened by the scale, on each axis."""
    pixels = np.random.default_rng(0).integers(60, 196, (48, 48, 3), dtype=np.uint8)

    def weights(n, m):
        scale = n / m
        centre = (np.arange(m)[:, None] + 0.5) * scale
        t = np.abs(np.arange(n)[None, :] + 0.5 - centre) / max(scale, 1.0)
        near = (1.5 * t - 2.5) * t * t + 1
        far = ((-0.5 * t + 2.5) * t - 4) * t + 2
        w = np.where(t < 1, near, np.where(t < 2, far, 0.0))
        return w / w.sum(axis=1, keepdims=True)

    for m in (32, 100):
        w = weights(48, m)
        across = np.clip(np.rint(np.einsum("xw,hwc->hxc", w, pixels)), 0, 255)
        want = np.clip(np.rint(np.einsum("yh,hxc->yxc", w, across)), 0, 255)
        difference = np.abs(np.asarray(resize(Image.fromarray(pixels), m)) - want)
        assert difference.max() <= 2  # Pillow's weights are integers
        assert difference.mean() < 0.01
    image = Image.fromarray(pixels)
    assert resize(image, 48) is image


def test_evaluation_images(make_records):
    records = make_records(3)
    batch = evaluation_images(records, 16)
    assert batch.shape == (3, 16, 16, 3)
    for pixels, record in zip(batch, records, strict=True):
        one = evaluation_image(Image.open(io.BytesIO(record["image"])), 16)
        np.testing.assert_array_equal(pixels, one)
    records[1]["image"] = b"x"
    with pytest.raises(SampleError) as error:
        evaluation_images(records, 16)
    assert error.value.key == "key-1"
