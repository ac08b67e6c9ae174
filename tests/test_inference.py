"""A model in use: what goes in, what comes out, how it is batched and sharded."""

import dataclasses
import io
import math

import jax
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from contrastive import inference
from contrastive.building import initial_towers
from contrastive.data.pipeline import DataConfig
from contrastive.data.tokenizer import TokenizerConfig, train_tokenizer
from contrastive.errors import DataError, UserError
from contrastive.evaluation.zero_shot import classification_metrics
from contrastive.geometry import normalize
from contrastive.inference import Model
from contrastive.mesh import MeshConfig, make_mesh
from contrastive.objectives import LossConfig
from contrastive.towers import (
    BagConfig,
    ConvTowerConfig,
    HeadConfig,
    TextTransformerConfig,
    TwoTowerConfig,
)


@dataclasses.dataclass(frozen=True)
class PartOfRecipe:
    """What a model reads of its recipe."""

    data: DataConfig
    model: TwoTowerConfig
    loss: LossConfig
    batch_size: int


RECIPE = PartOfRecipe(
    data=DataConfig(image_size=8, text_length=8),
    model=TwoTowerConfig(
        image=ConvTowerConfig(widths=(8, 8)),
        text=TextTransformerConfig(width=16, depth=1, heads=2),
        embedding_dim=16,
    ),
    loss=LossConfig(),
    batch_size=8,
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(
        ["a red cat", "a blue dog", "pizza"], length=8, config=TokenizerConfig(vocabulary_size=300)
    )


@pytest.fixture(scope="module")
def towers(tokenizer):
    return initial_towers(RECIPE, tokenizer, 0)


@pytest.fixture
def model(towers, tokenizer):
    return Model(RECIPE, towers, tokenizer, batch_size=4)


def pictures(n: int, size: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, size, size, 3), np.uint8)


def test_every_form_of_a_picture_gives_the_same_row(model, tmp_path):
    pixels = pictures(1)[0]
    image = Image.fromarray(pixels)
    image.save(tmp_path / "x.png")
    data = io.BytesIO()
    image.save(data, "png")
    forms = [pixels, image, tmp_path / "x.png", str(tmp_path / "x.png"), data.getvalue()]
    rows = model.encode_image(forms)
    assert rows.dtype == np.float32
    assert rows.shape == (5, 16)
    np.testing.assert_array_equal(rows, np.repeat(rows[:1], 5, axis=0))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    for form in forms:
        np.testing.assert_array_equal(model.encode_image(form), rows[:1])
    np.testing.assert_array_equal(model.encode_image(pixels[None]), rows[:1])


def test_arrays_of_another_size_go_through_the_evaluation_transform(model):
    large = pictures(3, size=20)
    rows = model.encode_image(large)
    np.testing.assert_array_equal(rows, model.encode_image([Image.fromarray(x) for x in large]))


def test_texts(model):
    rows = model.encode_text(["a red cat", "pizza", "a red cat"])
    assert rows.shape == (3, 16)
    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_array_equal(model.encode_text("pizza"), rows[1:2])
    assert model.encode_text([]).shape == (0, 16)
    assert model.encode_image([]).shape == (0, 16)


def test_rows_equal_the_towers_own(model, towers):
    batch = pictures(4)
    raw = np.asarray(towers.encode_image(jax.numpy.asarray(batch)))
    expected = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(model.encode_image(batch), expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_D06_accuracy_does_not_depend_on_batches_or_devices(towers, tokenizer, count: int):
    """Ten pictures, seven named rightly, whatever pads the last batch."""
    images = pictures(10)
    correct = np.array([1, 0, 1, 1, 0, 1, 1, 0, 1, 1])
    reference = Model(RECIPE, towers, tokenizer).encode_image(images)
    classes = np.concatenate([reference, -reference])
    labels = np.where(correct, np.arange(10), np.arange(10) + 10)
    for batch_size in (1, 3, 4, 10, 16):
        model = Model(RECIPE, towers, tokenizer, jax.devices()[:count], batch_size=batch_size)
        rows = model.encode_image(images)
        np.testing.assert_allclose(rows, reference, atol=1e-6)
        results = classification_metrics(rows, labels, np.arange(20), classes)
        assert (results["top1"], results["images"]) == (pytest.approx(0.7), 10)


def test_each_tower_is_compiled_once(model, towers, tokenizer):
    inference._encode.clear_cache()
    for n in (1, 4, 5, 9):
        model.encode_image(pictures(n))
        model.encode_text(["pizza"] * n)
    assert inference._encode._cache_size() == 2
    # Another set of values of the same parameters, as in evaluations during training.
    again = Model(RECIPE, towers, tokenizer, batch_size=4)
    again.encode_image(pictures(3))
    assert inference._encode._cache_size() == 2


def test_parameters_on_a_training_mesh_are_used_where_they_lie(tokenizer, towers):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    graphdef, parameters = nnx.split(towers)
    moved = jax.device_put(parameters, jax.NamedSharding(mesh, jax.P()))
    with jax.set_mesh(mesh):
        model = Model(RECIPE, nnx.merge(graphdef, moved), tokenizer, batch_size=6)
        assert model.batch_size == 8
        rows = model.encode_image(pictures(5))
        texts = model.encode_text(["pizza", "a red cat"])
    plain = Model(RECIPE, towers, tokenizer)
    np.testing.assert_allclose(rows, plain.encode_image(pictures(5)), atol=1e-6)
    np.testing.assert_allclose(texts, plain.encode_text(["pizza", "a red cat"]), atol=1e-6)


def test_similarity_is_the_cosine(model):
    a, b = np.array([[3.0, 4.0]]), np.array([[2.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(model.similarity(a, b), [[0.6, 0.0]], atol=1e-7)


def test_A13_without_a_bias_there_is_no_probability(model, towers, tokenizer):
    rows = model.encode_text(["pizza", "a red cat"])
    assert model.bias is None
    assert model.scale == pytest.approx(1 / 0.07)
    with pytest.raises(ValueError, match="no logit bias"):
        model.probability(rows, rows)
    with_bias = nnx.clone(towers)
    with_bias.bias = nnx.data(nnx.Param(jax.numpy.float32(-10)))
    with_bias.log_scale[...] = jax.numpy.log(jax.numpy.float32(10))
    sigmoid = Model(RECIPE, with_bias, tokenizer)
    assert (sigmoid.scale, sigmoid.bias) == (pytest.approx(10), -10)
    got = sigmoid.probability(np.eye(2), np.eye(2))
    expected = [[0.5, 1 / (1 + math.exp(10))], [1 / (1 + math.exp(10)), 0.5]]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_an_untrained_twin_has_other_parameters_from_the_seed(model):
    rows = [model.untrained(seed).encode_text(["pizza"]) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.abs(rows[0] - rows[2]).max() > 0.01
    assert np.abs(rows[0] - model.encode_text(["pizza"])).max() > 0.01


def test_two_texts_in_one_row_leave_no_embedding_of_one(towers, tokenizer):
    data = DataConfig(source="x.jsonl", pairs="texts", joined=True, text_length=8)
    model = Model(dataclasses.replace(RECIPE, data=data), towers, tokenizer)
    with pytest.raises(UserError, match=r"in one row .* has no embedding of one text"):
        model.encode_text("a red cat")


def test_what_is_no_picture_is_named(model, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"bad\.png cannot be read: decode error"):
        model.encode_image([pictures(1)[0], tmp_path / "bad.png"])
    with pytest.raises(DataError, match=r"missing\.png cannot be read: .*No such file"):
        model.encode_image(tmp_path / "missing.png")
    with pytest.raises(DataError, match="image 1 cannot be read"):
        model.encode_image([pictures(1)[0], b"junk"])
    with pytest.raises(TypeError, match="float64"):
        model.encode_image(np.zeros((2, 8, 8, 3)))
    with pytest.raises(TypeError, match=r"uint8\[1, 8, 8, 3\] is not a picture"):
        model.encode_image([pictures(1)])
    for nothing in (np.zeros((0, 5, 3), np.uint8), Image.new("RGB", (0, 0))):
        with pytest.raises(DataError, match="image 1 cannot be read: image without pixels"):
            model.encode_image([pictures(1)[0], nothing])


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 300, 3), (300, 1, 3)])
def test_pictures_of_a_pixel(model, shape):
    rows = model.encode_image(np.full(shape, 7, np.uint8))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)


def test_arrays_of_texts_and_of_ids(model, tokenizer):
    texts = ["a red cat", "pizza", ""]
    rows = model.encode_text(texts)
    np.testing.assert_array_equal(model.encode_text(np.array(texts)), rows)
    np.testing.assert_array_equal(model.encode_text(np.array(texts, object)), rows)
    np.testing.assert_allclose(model.encode_text(tokenizer.encode(texts)), rows, atol=1e-6)
    for ids, words in (
        (np.full((2, 8), 1.5), r"float64\[2, 8\] holds no texts"),
        (np.arange(8), r"int64\[8\] holds no texts"),
    ):
        with pytest.raises(TypeError, match=words):
            model.encode_text(ids)
    for value in (-1, tokenizer.vocabulary_size):
        with pytest.raises(
            ValueError, match=f"the vocabulary has 0 … {tokenizer.vocabulary_size - 1}"
        ):
            model.encode_text(np.full((2, 8), value))


def test_D11_a_head_of_the_training_is_dropped_unless_it_is_asked_for(tokenizer):
    head = HeadConfig(layers=2, output=4, activation="tanh")
    recipe = dataclasses.replace(
        RECIPE,
        data=DataConfig(source="x.jsonl", pairs="texts", text_length=8),
        model=dataclasses.replace(RECIPE.model, head=head),
    )
    towers = initial_towers(recipe, tokenizer, 0)
    model = Model(recipe, towers, tokenizer)
    rows, other = model.encode_text("a red cat"), model.pooled("head")
    assert (model.pooler, other.pooler) == ("mean", "head")
    assert (rows.shape, other.encode_text("a red cat").shape) == ((1, 16), (1, other.embedding_dim))
    assert other.embedding_dim == 4
    raw = towers.encode_text(jax.numpy.asarray(tokenizer.encode(["a red cat"])))
    np.testing.assert_allclose(rows, normalize(raw), atol=1e-6)
    behind = normalize(towers.head(raw))
    np.testing.assert_allclose(other.encode_text("a red cat"), behind, atol=1e-6)
    assert np.abs(model.pooled("cls").encode_text("a red cat") - rows).max() > 1e-3
    np.testing.assert_array_equal(model.pooled("mean").encode_text("a red cat"), rows)
    assert other.untrained(1).encode_text("a red cat").shape == (1, 4)  # behind its own head
    with pytest.raises(UserError, match="there is no untrained twin to compare it with"):
        Model(recipe, towers, None).untrained(1)


@pytest.mark.parametrize(
    ("head", "text", "pooler", "words"),
    [
        (HeadConfig(), RECIPE.model.text, "head", "no head behind"),
        (HeadConfig(layers=2, norm="batch"), RECIPE.model.text, "head", "batch normalisation"),
        (HeadConfig(), RECIPE.model.text, "cla", "choose from mean, max, cls"),
        (HeadConfig(), BagConfig(width=16), "cls", "pools no tokens"),
    ],
    ids=["no-head", "batch-norm", "unknown", "bag"],
)
def test_poolers_that_a_model_does_not_have(tokenizer, head, text, pooler, words):
    recipe = dataclasses.replace(
        RECIPE,
        data=DataConfig(source="x.jsonl", pairs="texts", text_length=8),
        model=dataclasses.replace(RECIPE.model, head=head, text=text),
    )
    with pytest.raises(UserError, match=words):
        Model(recipe, initial_towers(recipe, tokenizer, 0), tokenizer).pooled(pooler)
