"""Imported towers against the libraries that the weights come from; needs `make parity`.

Tiny models with seeded weights, every bias and norm moved off its start: embeddings, the library's
own loss, and the gradient of every parameter, carried over by the same table of names.
"""

import dataclasses
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from contrastive.data.transforms import evaluation_image
from contrastive.geometry import normalize
from contrastive.losses import clip_loss, sigmoid_loss
from contrastive.pretrained import mapping
from contrastive.pretrained.exporting import export_weights, parameters
from contrastive.pretrained.importing import abstract_state, import_weights, with_parameters
from contrastive.pretrained.source import open_source
from contrastive.pretrained.tensors import read_tensors
from contrastive.towers import layers
from contrastive.towers.statistics import moved, taken_out

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
CASES = (
    *("clip", "clip-gelu", "clip-tanh", "siglip", "siglip-odd", "vit", "vit-odd"),
    *("open_clip", "open_clip-gelu", "open_clip-text", "open_clip-siglip"),
    *("naflex", "naflex-wide", "resnet", "resnet-basic", "resnet-early", "open_clip-resnet"),
    *("convnext", "convnext-odd"),
)
EXPORTED = {
    "clip": "huggingface",
    "siglip": "huggingface",
    "vit": "huggingface",
    "naflex": "huggingface",
    "resnet": "huggingface",
    "convnext": "huggingface",
    "open_clip": "open_clip",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder a case: the weights as their library saves them, and what it computes."""
    root = tmp_path_factory.mktemp("weights")
    script = ROOT / "tests" / "parity" / "peer_weights.py"
    cases = [*CASES, "resnet-batch"]
    subprocess.run([PYTHON, script, root, *cases], check=True, timeout=1500)
    return root


def own_loss(towers, pixels, ids):
    if ids is None:
        rows = towers.image(pixels)
        return jnp.sum(jnp.sin(rows)), (rows,)
    patches = pixels.dtype == jnp.uint8  # with their places; normalised inside
    x = normalize(towers.encode_image(pixels) if patches else towers.image(pixels))
    y = normalize(towers.encode_text(ids))
    scale = jnp.exp(towers.log_scale[...])
    if towers.bias is None:
        return clip_loss(x, y, scale), (x, y)
    return sigmoid_loss(x, y, scale, towers.bias[...]), (x, y)


@pytest.mark.parametrize("case", CASES)
def test_embeddings_loss_and_gradients_equal_the_librarys(folders, case, record_property):
    found = import_weights(folders / case)
    reference = dict(np.load(folders / case / "reference.npz"))
    pixels = pixels_of(found, reference)
    ids = jnp.asarray(reference["ids"], jnp.int32) if "ids" in reference else None
    graphdef, state = nnx.split(found.towers)

    @jax.jit
    def step(state):
        def loss(state):
            return own_loss(nnx.merge(graphdef, state), pixels, ids)

        return jax.value_and_grad(loss, has_aux=True)(state)

    (loss, rows), gradients = step(state)
    for name, ours in zip(("image", "text"), rows, strict=False):
        error = np.abs(normalize(ours) - normalize(reference[name])).max()
        record_property(name, float(error))
        assert error <= 1e-5, (name, error)
    assert (ids is None) == (found.settings.model.text is None)
    if ids is not None:
        assert abs(loss - reference["loss"]) <= 1e-6 * max(1.0, abs(reference["loss"]))
    worst = worst_gradient(found, folders / case, reference, gradients)
    record_property("gradient", float(worst[0]))
    print(
        f"{case}: loss {abs(loss - reference['loss']):.1e}, gradients {worst[0]:.1e} ({worst[1]})"
    )
    assert worst[0] <= 1e-4, worst


def test_a_published_size_gives_the_librarys_rows_and_loss(tmp_path):
    """CLIP ViT-B/32, whole: 151,277,313 parameters, seeded."""
    script = ROOT / "tests" / "parity" / "peer_weights.py"
    subprocess.run([PYTHON, script, tmp_path, "clip-b32"], check=True, timeout=1500)
    found = import_weights(tmp_path / "clip-b32")
    reference = dict(np.load(tmp_path / "clip-b32" / "reference.npz"))
    graphdef, state = nnx.split(found.towers)
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) == 151_277_313
    pixels, ids = pixels_of(found, reference), jnp.asarray(reference["ids"], jnp.int32)
    step = jax.jit(lambda state: own_loss(nnx.merge(graphdef, state), pixels, ids))
    loss, rows = step(state)
    for name, ours in zip(("image", "text"), rows, strict=True):
        wanted = reference[name]
        error = np.abs(ours - wanted).max()
        print(f"clip-b32: {name} {error:.1e}")
        assert error <= 1e-5, (name, error)
        assert np.abs(wanted[0] - wanted[1:]).max(axis=1).min() > 1e-3  # rows that differ
    print(f"clip-b32: loss {abs(loss - reference['loss']):.1e}")
    assert abs(loss - reference["loss"]) <= 1e-6 * max(1.0, abs(reference["loss"]))


def test_batch_statistics_equal_pytorchs(folders):
    """A ResNet in training: rows, gradients, and the running statistics after a step."""
    found = import_weights(folders / "resnet-batch")
    reference = dict(np.load(folders / "resnet-batch" / "reference.npz"))
    model = found.settings.model
    image = dataclasses.replace(model.image, statistics="batch")
    settings = dataclasses.replace(found.settings, model=dataclasses.replace(model, image=image))
    towers = with_parameters(settings, None, parameters(found.towers))
    graphdef, state = nnx.split(towers)
    pixels = pixels_of(found, reference)

    @jax.jit
    def step(state):
        def loss(state):
            tower = nnx.merge(graphdef, state).image
            rows = tower(pixels, keys=layers.row_keys(jax.random.key(0), pixels))
            return jnp.sum(jnp.sin(rows)), rows

        (_, rows), gradients = jax.value_and_grad(loss, has_aux=True)(state)
        gradients, moves = taken_out(gradients)
        return rows, gradients, moved(state, moves)

    rows, gradients, after = step(state)
    assert np.abs(normalize(rows) - normalize(reference["image"])).max() <= 1e-5
    worst = worst_gradient(found, folders / "resnet-batch", reference, gradients)
    print(f"resnet-batch: gradients {worst[0]:.1e} ({worst[1]})")
    assert worst[0] <= 1e-4, worst
    ours = mapping.write(found.family.rules(settings), parameters(nnx.merge(graphdef, after)))
    names = [name for name in reference if name.startswith("after/") and "num_batches" not in name]
    assert len(names) == 2 * 12
    for name in names:
        value = ours[name.removeprefix("after/")]
        assert np.abs(value - reference[name]).max() <= 1e-5, name


def pixels_of(found, reference):
    """What the image tower takes: normalised pixels, or patches of pictures of any aspect."""
    if "pixels" in reference:
        return jnp.asarray(reference["pixels"].transpose(0, 2, 3, 1))
    data, count = found.settings.data, len(reference["shapes"])
    pictures = [Image.fromarray(reference[f"picture/{i}"]) for i in range(count)]
    how = data.image_size, data.preprocessing, data.resize
    return jnp.asarray(np.stack([evaluation_image(picture, *how) for picture in pictures]))


def worst_gradient(found, folder, reference, gradients):
    """The largest relative difference over the parameters; those whose gradient is nothing but
    rounding (under 1e-4 of the largest) are compared with that floor."""
    theirs = {
        name.removeprefix("gradient/"): array
        for name, array in reference.items()
        if name.startswith("gradient/")
    }
    family, settings = found.family, found.settings
    _, shapes = abstract_state(settings, None)
    fixed = ("/mean", "/variance")  # of batch normalisation
    wanted = mapping.read(
        [rule for rule in family.rules(settings) if not rule.paths[0].endswith(fixed)],
        theirs,
        {n: leaf for n, leaf in shapes.items() if n not in family.fresh and not n.endswith(fixed)},
        ignored=family.ignored,
        renamed=family.renamed,
    ).parameters
    ours = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(gradients)}
    floor = 1e-4 * max(np.linalg.norm(array) for array in wanted.values())
    assert not any(ours[name].any() for name in ours if name.endswith(fixed))
    errors = {
        name: np.linalg.norm(ours[name] - array) / max(np.linalg.norm(array), floor)
        for name, array in wanted.items()
    }
    name = max(errors, key=errors.__getitem__)
    return float(errors[name]), name


@pytest.mark.parametrize("case", [case for case in CASES if case.partition("-")[0] in EXPORTED])
def test_import_and_export_give_the_same_bits(folders, case, tmp_path):
    if case == "open_clip-siglip":
        pytest.skip("the names of timm's towers say their sizes; there is no export to them")
    found = import_weights(folders / case)
    export_weights(
        found.settings,
        found.towers,
        found.tokenizer,
        EXPORTED[case.partition("-")[0]],
        tmp_path / "out",
    )
    before = read_tensors(open_source(folders / case).weights)
    after = read_tensors(open_source(tmp_path / "out").weights)
    ignored = set(found.ignored)  # heads of other tasks, counters
    assert set(before) - ignored == set(after)
    for name, array in ((n, a) for n, a in before.items() if n not in ignored):
        assert after[name].dtype == array.dtype
        assert after[name].shape == array.shape
        assert after[name].tobytes() == array.tobytes(), name
