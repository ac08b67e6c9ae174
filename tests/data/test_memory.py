"""What the loader holds on to does not grow (experiments/benchmarks/soak.py runs for an hour)."""

import gc
import io
import tarfile
import tracemalloc

import pytest

from contrastive.data.config import AugmentConfig
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.sources import open_source

SIDE, BATCH = 64, 16


@pytest.fixture
def tars(tmp_path, picture):
    """64 samples, every fourth one damaged."""
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i in range(64):
            data = picture(i)
            data = data[:-40] if i % 4 == 3 else data
            for suffix, value in (("png", data), ("txt", f"thing {i}".encode())):
                info = tarfile.TarInfo(f"{i:03}.{suffix}")
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
    return tmp_path / "a.tar"


def test_a_loader_that_meets_bad_samples_holds_on_to_nothing(tars, config_of):
    """Also without the collector of cycles, which comes late where objects are few and large."""
    options = {"check": "during", "max_bad_share": 0.5, "augment": AugmentConfig(hue=0.0)}
    config = config_of(tars, image_size=SIDE, threads=0, prefetch=0, **options)
    source = open_source(config, "train")
    loader = BatchLoader(source, config, load_tokenizer(config, source), batch_size=BATCH, seed=0)
    for _ in range(8):
        next(loader)
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        next(loader)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(20):
            next(loader)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
        loader.close()
    assert len(loader.errors) == 16
    assert after - before < 2 * BATCH * SIDE * SIDE * 3  # two batches of the twenty
