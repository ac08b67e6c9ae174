"""Pairs of equal content in a batch: which they are, and what marking or dropping them means."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from contrastive import reference
from contrastive.data.config import DataConfig
from contrastive.data.pipeline import BatchLoader, load_tokenizer
from contrastive.data.records import DataErrors, InMemorySource
from contrastive.logits.masks import first_of_content
from contrastive.objectives import LossConfig, make_objective
from contrastive.towers import ConvTowerConfig, TextTransformerConfig, TwoTower, TwoTowerConfig

CONFIG = DataConfig(image_size=8, text_length=8, threads=0)


class Indexed(InMemorySource):
    fingerprint = "abc"
    errors = DataErrors()


def batch_of(records, **options):
    source, config = Indexed(records), dataclasses.replace(CONFIG, **options)
    tokenizer = load_tokenizer(config, source)
    loader = BatchLoader(source, config, tokenizer, batch_size=len(records), seed=0)
    batch = next(loader)
    loader.close()
    return batch


def groups(batch):
    """The examples of each content that more than one has."""
    found = {}
    for example, identity in zip(batch["example"].tolist(), batch["id"], strict=True):
        found.setdefault(tuple(np.atleast_1d(identity).tolist()), set()).add(example)
    return sorted(sorted(group) for group in found.values() if len(group) > 1)


@pytest.fixture
def records(make_records):
    """Twelve pairs: 1 and 2 have one caption, 2 and 5 one picture, 7 and 8 are equal."""
    found = make_records(12)
    found[2]["caption"] = "Thing  number 1"
    found[5]["image"] = found[2]["image"]
    found[8] = dict(found[7])
    return found


@pytest.mark.parametrize(
    "options,equal",
    [
        ({}, [[1, 2, 5], [7, 8]]),
        ({"content": "either"}, [[1, 2, 5], [7, 8]]),
        ({"content": "first"}, [[2, 5], [7, 8]]),
        ({"content": "second"}, [[1, 2], [7, 8]]),
        ({"check": "during"}, [[1, 2], [7, 8]]),
        ({"check": "during", "content": "second"}, [[1, 2], [7, 8]]),
        ({"check": "during", "content": "first"}, [[2, 5], [7, 8]]),
    ],
)
def test_what_makes_pairs_equal(records, options, equal):
    assert groups(batch_of(records, **options)) == equal


IDS = np.array([3, 1, 3, -1, 1, 1, -1, 0], np.int32)
FIRST = [True, True, False, True, False, False, True, True]


def wide(ids):
    """The same as 64-bit words, with a difference in the high word alone."""
    words = np.stack([ids // 2, ids % 2], axis=1).astype(np.uint32)
    words[ids == -1] = 0xFFFFFFFF
    return words


@pytest.mark.parametrize("ids", [IDS, wide(IDS)], ids=["int32", "64 bits"])
@pytest.mark.parametrize("devices", [0, 2, 8])
def test_the_first_of_each_content(ids, devices):
    if not devices:
        assert jax.jit(first_of_content)(ids).tolist() == FIRST
        return
    for kind in (AxisType.Explicit, AxisType.Auto):
        mesh = Mesh(np.array(jax.devices()[:devices]), ("data",), axis_types=(kind,))
        with jax.set_mesh(mesh):
            cut = jax.device_put(ids, NamedSharding(mesh, PartitionSpec("data")))
            found = jax.jit(first_of_content)(cut)
        assert found.tolist() == FIRST
        if kind == AxisType.Explicit:
            assert found.sharding.spec == PartitionSpec("data")


@pytest.fixture
def measure():
    """``measure(batch, **loss)``: value and gradients of a small model on a batch."""
    model = TwoTower(
        TwoTowerConfig(
            embedding_dim=4,
            image=ConvTowerConfig(widths=(4,)),
            text=TextTransformerConfig(width=8, depth=1, heads=1),
        ),
        image_size=8,
        text_length=8,
        vocabulary_size=400,
        pad_id=0,
        scale_init=10.0,
        rngs=nnx.Rngs(0),
    )
    graphdef, parameters = nnx.split(model)

    def run(batch, **loss):
        objective = make_objective(LossConfig(name="clip", **loss))

        def value(parameters, arrays):
            return objective(nnx.merge(graphdef, parameters), arrays, jax.random.key(0))[0]

        arrays = {name: jnp.asarray(x) for name, x in batch.items() if name != "example"}
        return jax.jit(value)(parameters, arrays), jax.jit(jax.grad(value))(parameters, arrays)

    run.model = model
    return run


@pytest.mark.slow
def test_dropped_pairs_are_not_in_the_loss(records, measure):
    """The loss of a batch with duplicates is that of the batch without them; only marked, they
    still count as rows, and not as each other's negatives."""
    batch = batch_of(records)
    first = np.asarray(first_of_content(jnp.asarray(batch["id"])))
    assert first.sum() == 9
    smaller = {name: rows[first] for name, rows in batch.items()}
    dropped, gradient = measure(batch, drop_duplicates=True)
    alone, wanted = measure(smaller)
    np.testing.assert_allclose(dropped, alone, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    marked, _ = measure(batch)
    neither, _ = measure(batch, mask_duplicates=False)
    assert len({round(float(x), 4) for x in (dropped, marked, neither)}) == 3
    image, text = (jnp.asarray(batch[name]) for name in ("image", "text"))
    rows = (measure.model.encode_image(image), measure.model.encode_text(text))
    images, texts = (reference.normalize(x) for x in rows)
    for found, options in (
        (marked, {"ids": batch["id"]}),
        (dropped, {"weights": first.astype(float)}),
        (neither, {}),
    ):
        expected, _ = reference.clip_loss(images, texts, 10.0, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rows_that_could_not_be_read_stay_out(records, measure):
    records[1]["image"] = b"broken"
    batch = batch_of(records, check="during", max_bad_share=1.0)
    keep = np.asarray(first_of_content(jnp.asarray(batch["id"]))) & (batch["weight"] > 0)
    assert keep.sum() == 10  # one is broken, 8 is like 7; 2 is the only one with its caption
    dropped, _ = measure(batch, drop_duplicates=True)
    alone, _ = measure({name: rows[keep] for name, rows in batch.items()})
    np.testing.assert_allclose(dropped, alone, rtol=1e-5)
