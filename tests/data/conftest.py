import io
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contrastive.data.config import DataConfig
from contrastive.data.records import Record
from contrastive.data.source_config import FieldsConfig

ALL = FieldsConfig(held_out_share=0.0)


def png(pixels: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def noise(seed: int, side: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


@pytest.fixture
def picture() -> Callable[[int], bytes]:
    """``picture(seed)``: the PNG of some noise."""
    return lambda seed: png(noise(seed))


@pytest.fixture
def config_of(tmp_path: pathlib.Path) -> Callable[..., DataConfig]:
    """Settings of a source, with the cache in a folder of the test."""

    def make(source: object, fields: FieldsConfig = ALL, **kwargs: Any) -> DataConfig:
        sizes: dict[str, Any] = {"image_size": 8, "text_length": 8}
        sizes["cache"] = str(tmp_path / "cache")
        return DataConfig(source=str(source), fields=fields, **(sizes | kwargs))

    return make


@pytest.fixture
def make_records() -> Callable[..., list[Record]]:
    """``make_records(n)``: n records with distinct pictures and captions."""

    def make(n: int, *, keywords: Sequence[str] = (), side: int = 24) -> list[Record]:
        return [
            Record(
                image=png(noise(i, side)),
                caption=f"thing number {i}",
                keywords=list(keywords),
                id=-1,
                key=f"key-{i}",
            )
            for i in range(n)
        ]

    return make


@pytest.fixture
def write_table(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Writes pictures 0.png ... and a table with the given text or bytes beside them."""

    def write(text: str | bytes, *, pictures: int = 0, name: str = "pairs.csv") -> pathlib.Path:
        for i in range(pictures):
            (tmp_path / f"{i}.png").write_bytes(png(noise(i)))
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
