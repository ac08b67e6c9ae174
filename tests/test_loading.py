"""Where a loaded model computes: on all devices of the process, whatever the number of rows."""

import jax
import numpy as np
import pytest

import contrastive
from contrastive import inference
from contrastive.cli import main
from tests.pretrained.test_families import FIXTURES, give_tokenizer

COUNTS = (1, 5, 9, 19)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Weights of another library, and the same as a folder like that of a run."""
    root = tmp_path_factory.mktemp("folders")
    foreign = root / "foreign"
    foreign.mkdir()
    for file in (FIXTURES / "clip").iterdir():
        (foreign / file.name).write_bytes(file.read_bytes())
    give_tokenizer(foreign)
    assert main(["import", str(foreign), f"--output={root / 'native'}"]) == 0
    return root


def pictures(count):
    return np.random.default_rng(0).integers(0, 256, (count, 20, 20, 3), np.uint8)


def texts(count):
    return [" ".join(f"w{(i * j) % 28}" for j in range(i % 6)) for i in range(count)]


@pytest.mark.parametrize("name", ["foreign", "native"])
def test_rows_are_the_same_on_one_and_on_all_devices(folders, name):
    one = contrastive.load(folders / name, devices=jax.local_devices()[:1], batch_size=4)
    every = contrastive.load(folders / name, batch_size=4)
    assert (one.batch_size, every.batch_size) == (4, 8)
    for count in COUNTS:
        for view, given in (("image", pictures(count)), ("text", texts(count))):
            ours, wanted = (getattr(m, f"encode_{view}")(given) for m in (every, one))
            assert ours.shape == wanted.shape == (count, 8)
            np.testing.assert_allclose(ours, wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["foreign", "native"])
def test_batches_are_cut_over_all_local_devices(folders, name, monkeypatch):
    seen, encode = [], inference._encode

    def watched(parameters, rows, *more):
        seen.append((parameters, rows))
        return encode(parameters, rows, *more)

    monkeypatch.setattr(inference, "_encode", watched)
    model = contrastive.load(folders / name, batch_size=9)
    model.encode_image(pictures(5))
    model.encode_text(texts(19))
    everywhere = set(jax.local_devices())
    assert len(everywhere) == 8
    assert len(seen) == 3
    for parameters, rows in seen:
        assert {shard.data.shape[0] for shard in rows.addressable_shards} == {2}
        for leaf in (rows, *jax.tree.leaves(parameters)):
            assert leaf.sharding.device_set == everywhere
