"""SigLIP 2 NaFlex: pictures in their own proportions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import contrastive
from contrastive.cli import main
from contrastive.data.config import DataConfig
from contrastive.data.picture_config import ResizeConfig
from contrastive.data.transforms import evaluation_image, naflex_grid
from contrastive.errors import ConfigError
from contrastive.geometry import normalize
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.tensors import read_tensors
from contrastive.towers.naflex import place_weights
from contrastive.towers.positions import resize_positions
from tests.pretrained.test_families import give_tokenizer


def test_rows_equal_the_librarys(copied):
    folder = copied("naflex")
    reference = dict(np.load(folder / "reference.npz"))
    model = contrastive.load(folder)
    pictures = [reference[f"picture/{i}"] for i in range(len(reference["shapes"]))]
    assert len({picture.shape for picture in pictures}) > 1
    rows = model.encode_image([Image.fromarray(picture) for picture in pictures])
    np.testing.assert_allclose(rows, normalize(reference["image"]), atol=1e-5)
    rows = model.encode_text(reference["ids"])
    np.testing.assert_allclose(rows, normalize(reference["text"]), atol=1e-5)


def test_import_and_export_give_the_same_bits(copied, tmp_path):
    folder = copied("naflex")
    give_tokenizer(folder)
    native, out = tmp_path / "native", tmp_path / "out"
    assert main(["import", str(folder), f"--output={native}"]) == 0
    assert main(["export", str(native), "--format=huggingface", f"--output={out}"]) == 0
    before, after = (read_tensors(f / "model.safetensors") for f in (folder, out))
    assert set(before) == set(after)
    for name, array in before.items():
        assert after[name].tobytes() == array.tobytes(), name
    assert import_weights(out).settings.model == import_weights(folder).settings.model


@pytest.mark.parametrize("rows,columns", [(3, 5), (6, 2), (4, 4), (1, 9)])
def test_positions_are_the_resized_table(rows, columns):
    table = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    places = np.indices((rows, columns)).reshape(2, -1).T
    places = np.concatenate([places, np.full_like(places, (rows, columns))], axis=1)
    ours = place_weights(jnp.asarray(places[None], jnp.int32), 4)[0] @ table
    wanted = resize_positions(table, (4, 4), (rows, columns), method="bilinear_antialias")
    np.testing.assert_allclose(ours, wanted, atol=1e-6)


def test_what_is_over_changes_nothing(copied):
    towers = import_weights(copied("naflex")).towers
    shape = (16, ResizeConfig(interpolation="bilinear", patch=4))
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 57, 3), np.uint8))
    patches = evaluation_image(picture, shape[0], "naflex", shape[1])
    used = (patches[:, -2] > 0).sum()
    assert used == 12  # two rows of six, of sixteen
    noise = patches.copy()
    noise[used:, :-4] = 200
    run = jax.jit(lambda x: towers.encode_image(x))
    np.testing.assert_array_equal(run(jnp.asarray(patches[None])), run(jnp.asarray(noise[None])))


@pytest.mark.parametrize("width,height", [(640, 480), (480, 640), (3000, 10), (10, 3000)])
def test_grids_fit_and_keep_the_proportions(width, height):
    columns, rows = naflex_grid(width, height, 16, 256)
    assert 1 <= columns * rows <= 256
    assert columns * rows > 256 - columns - rows
    if max(width, height) < 20 * min(width, height):
        assert abs(np.log(columns / rows) - np.log(width / height)) < 0.15


def test_settings():
    with pytest.raises(ConfigError, match=r"resize\.patch has no effect"):
        DataConfig(resize=ResizeConfig(patch=8))
    with pytest.raises(ConfigError, match="no multiple of"):
        DataConfig(preprocessing="naflex", image_size=30, resize=ResizeConfig(patch=8))
