"""ConvNeXt's folders, both ways, and what a residual network's folder becomes when it is written.

The committed model was written by transformers (`tests/parity/peer_weights.py`).
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from contrastive.building import build_towers
from contrastive.cli import main
from contrastive.errors import UserError
from contrastive.geometry import normalize
from contrastive.pretrained.exporting import export_weights, parameters
from contrastive.pretrained.families import Description
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.tensors import read_tensors
from contrastive.towers import ConvNeXtConfig, ResNetConfig, TwoTowerConfig
from tests.pretrained.test_families import configure


def test_rows_equal_the_librarys(copied):
    folder = copied("convnext")
    reference = dict(np.load(folder / "reference.npz"))
    found = import_weights(folder)
    assert found.settings.model.image == ConvNeXtConfig(
        widths=(8, 12), depths=(1, 2), last_epsilon=1e-12, projection="none"
    )
    rows = jax.jit(lambda p: found.towers.image(p))(
        jnp.asarray(reference["pixels"].transpose(0, 2, 3, 1))
    )
    np.testing.assert_allclose(normalize(rows), normalize(reference["image"]), atol=1e-5)


def test_import_and_export_give_the_same_bits(copied, tmp_path):
    folder, native, out = copied("convnext"), tmp_path / "native", tmp_path / "out"
    assert main(["import", str(folder), f"--output={native}"]) == 0
    assert main(["export", str(native), "--format=huggingface", f"--output={out}"]) == 0
    before, after = (read_tensors(f / "model.safetensors") for f in (folder, out))
    assert set(before) == set(after)
    for name, array in before.items():
        assert after[name].tobytes() == array.tobytes(), name
    assert import_weights(out).settings == import_weights(folder).settings


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"depths": [1, 10**12]}, "asks for 1000000000001 blocks"),
        ({"depths": [1]}, "as many stages"),
        ({"hidden_sizes": [8, 0]}, "hidden_sizes"),
        ({"hidden_sizes": [8, 16]}, "of a wrong shape"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not known"),
        ({"layer_scale_init_value": 0.0}, "not known here: .*layer_scale_parameter"),
        ({"patch_size": 2}, r"patch_embeddings.weight is float32\[8, 3, 4, 4\]"),
    ],
)
def test_configurations_that_are_not_those_of_the_weights(copied, changes, words):
    folder = copied("convnext")
    configure(folder, **changes)
    with pytest.raises(UserError, match=words):
        import_weights(folder)


def test_large_pictures_are_stretched(copied):
    folder = copied("convnext")
    configure(folder, "preprocessor_config.json", size={"shortest_edge": 384})
    data = import_weights(folder).settings.data
    assert (data.preprocessing, data.image_size) == ("stretch", 384)


@pytest.mark.slow
def test_a_residual_network_is_written_and_read(tmp_path):
    image = ResNetConfig(block="basic", stem=4, widths=(8, 16), depths=(1, 2), statistics="batch")
    data = import_data(tmp_path)
    settings = Description(
        data=data,
        model=TwoTowerConfig(
            image=image,
            text=None,
            embedding_dim=16,
            pixel_mean=(0.485, 0.456, 0.406),
            pixel_std=(0.229, 0.224, 0.225),
        ),
    )
    towers = build_towers(settings, settings, rngs=nnx.Rngs(0))
    export_weights(settings, towers, None, "huggingface", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["layer_type"]) == ("resnet", "basic")
    found = import_weights(tmp_path / "out")
    assert found.settings.data.resize == data.resize
    before, after = parameters(towers), parameters(found.towers)
    assert set(before) == set(after)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)


def import_data(folder):
    from contrastive.data.config import DataConfig
    from contrastive.data.picture_config import ResizeConfig

    how = ResizeConfig(interpolation="bilinear", share=0.875, centre="floor")
    return DataConfig(image_size=224, preprocessing="shortest", resize=how)
