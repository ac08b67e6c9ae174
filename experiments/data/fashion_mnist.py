"""Fashion-MNIST as pictures with the names of their classes: 60,000 to train on, 10,000 to test.

    python -m experiments.data.fashion_mnist --output=data/fashion_mnist
    contrastive data inspect --config=... --config.data.source=data/fashion_mnist

Licence: MIT, copyright 2017 by Zalando SE (Xiao, Rasul, Vollgraf: Fashion-MNIST, 2017). The
pictures come from Debian's package dataset-fashion-mnist, whose notice is copied beside them.
"""

import gzip
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from contrastive.whole import whole_file
from experiments.data.packages import arguments, debian

PACKAGE = "dataset-fashion-mnist"
NAMES = (
    "t-shirt or top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
FILES = {"train": "train", "test": "t10k"}
ROW_GROUP = 500  # rows that are decoded to read one


def read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Pictures ``[n, 28, 28]`` and labels ``[n]`` of a part."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def encoded(pixels: np.ndarray) -> Iterator[bytes]:
    """Each picture as a PNG."""
    for picture in pixels:
        out = io.BytesIO()
        Image.fromarray(picture).save(out, "PNG")
        yield out.getvalue()


def main() -> None:
    options = arguments(__doc__, "data/fashion_mnist")
    root = debian(PACKAGE, options.packages)
    for split, part in FILES.items():
        pixels, labels = read(root / "usr/share/datasets/fashion-mnist", part)
        table = pa.table(
            {"image": list(encoded(pixels)), "caption": [NAMES[label] for label in labels]}
        )
        with whole_file(options.output / f"{split}.parquet") as path:
            pq.write_table(table, path, row_group_size=ROW_GROUP)
        print(f"{options.output / split}.parquet: {len(table):,} pictures")
    shutil.copy(root / f"usr/share/doc/{PACKAGE}/copyright", options.output / "LICENSE")


if __name__ == "__main__":
    main()
