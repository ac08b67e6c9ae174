"""big_vision's ``.npz``: SigLIP's weights as its own code names them."""

import numpy as np
import pytest
from flax import nnx

from contrastive.errors import WeightsError
from contrastive.geometry import normalize
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.tensors import read_tensors
from tests.pretrained.test_families import FIXTURES, embed


def as_big_vision(theirs):
    """transformers' tensors in big_vision's form, by hand."""
    heads = 2
    out = {"params/t": theirs["logit_scale"], "params/b": theirs["logit_bias"]}

    def norm(name, source):
        out[f"{name}/scale"] = theirs[f"{source}.weight"]
        out[f"{name}/bias"] = theirs[f"{source}.bias"]

    def dense(name, source):
        out[f"{name}/kernel"] = theirs[f"{source}.weight"].T
        out[f"{name}/bias"] = theirs[f"{source}.bias"]

    def attention(name, weights, biases, last):
        for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            out[f"{name}/{part}/kernel"] = weight.T.reshape(len(weight), heads, -1)
            out[f"{name}/{part}/bias"] = bias.reshape(heads, -1)
        out[f"{name}/out/kernel"] = theirs[f"{last}.weight"].T.reshape(heads, -1, len(weights[0]))
        out[f"{name}/out/bias"] = theirs[f"{last}.bias"]

    def block(name, source):
        norm(f"{name}/LayerNorm_0", f"{source}.layer_norm1")
        norm(f"{name}/LayerNorm_1", f"{source}.layer_norm2")
        parts = [f"{source}.self_attn.{letter}_proj" for letter in "qkv"]
        attention(
            f"{name}/MultiHeadDotProductAttention_0",
            [theirs[f"{p}.weight"] for p in parts],
            [theirs[f"{p}.bias"] for p in parts],
            f"{source}.self_attn.out_proj",
        )
        dense(f"{name}/MlpBlock_0/Dense_0", f"{source}.mlp.fc1")
        dense(f"{name}/MlpBlock_0/Dense_1", f"{source}.mlp.fc2")

    vision, text = "vision_model", "text_model"
    patch = theirs[f"{vision}.embeddings.patch_embedding.weight"]
    out["params/img/embedding/kernel"] = patch.transpose(2, 3, 1, 0)
    out["params/img/embedding/bias"] = theirs[f"{vision}.embeddings.patch_embedding.bias"]
    for tower, source in (("img", vision), ("txt", text)):
        table = theirs[f"{source}.embeddings.position_embedding.weight"]
        out[f"params/{tower}/pos_embedding"] = table[None]
    out["params/txt/Embed_0/embedding"] = theirs[f"{text}.embeddings.token_embedding.weight"]
    for i in range(2):
        block(f"params/img/Transformer/encoderblock_{i}", f"{vision}.encoder.layers.{i}")
        block(f"params/txt/Encoder_0/encoderblock_{i}", f"{text}.encoder.layers.{i}")
    norm("params/img/Transformer/encoder_norm", f"{vision}.post_layernorm")
    norm("params/txt/Encoder_0/encoder_norm", f"{text}.final_layer_norm")
    dense("params/txt/head", f"{text}.head")
    head, pool = "params/img/MAPHead_0", f"{vision}.head"
    out[f"{head}/probe"] = theirs[f"{pool}.probe"]
    attention(
        f"{head}/MultiHeadDotProductAttention_0",
        np.split(theirs[f"{pool}.attention.in_proj_weight"], 3),
        np.split(theirs[f"{pool}.attention.in_proj_bias"], 3),
        f"{pool}.attention.out_proj",
    )
    norm(f"{head}/LayerNorm_0", f"{pool}.layernorm")
    dense(f"{head}/MlpBlock_0/Dense_0", f"{pool}.mlp.fc1")
    dense(f"{head}/MlpBlock_0/Dense_1", f"{pool}.mlp.fc2")
    return out


def scanned(arrays):
    """Blocks stacked, as towers that are scanned are saved."""
    out = {}
    for name, array in arrays.items():
        if "encoderblock_0" in name:
            pair = [arrays[name.replace("block_0", f"block_{i}")] for i in range(2)]
            out[name.replace("encoderblock_0", "encoderblock")] = np.stack(pair)
        elif "encoderblock_" not in name:
            out[name] = array
    return out


@pytest.fixture(scope="module")
def arrays():
    return as_big_vision(read_tensors(FIXTURES / "siglip" / "model.safetensors"))


@pytest.mark.parametrize("form", [dict, scanned])
def test_embeddings_equal_the_librarys(arrays, form, tmp_path):
    np.savez(tmp_path / "siglip.npz", **form(arrays))
    found = import_weights(tmp_path / "siglip.npz")
    assert found.family.name == "big_vision"
    assert found.settings.data.image_size == 20
    assert found.settings.data.resize.interpolation == "bilinear"
    assert found.towers.bias[...] == arrays["params/b"][0]
    if form is scanned:
        return
    reference = dict(np.load(FIXTURES / "siglip" / "reference.npz"))
    for rows, key in zip(embed(found.towers, reference), ("image", "text"), strict=True):
        np.testing.assert_allclose(rows, normalize(reference[key]), atol=1e-5)


def test_both_forms_are_the_same_model(arrays, tmp_path):
    towers = []
    for name, form in (("a", dict), ("b", scanned)):
        np.savez(tmp_path / f"{name}.npz", **form(arrays))
        towers.append(import_weights(tmp_path / f"{name}.npz").towers)
    one, other = (dict(nnx.to_flat_state(nnx.state(tower))) for tower in towers)
    assert one.keys() == other.keys()
    for path, leaf in one.items():
        np.testing.assert_array_equal(leaf[...], other[path][...], err_msg=str(path))
    wide = import_weights(tmp_path / "a.npz", image_size=35)
    grid = arrays["params/img/pos_embedding"].reshape(4, 4, -1)
    new = wide.towers.image.positions[...].reshape(7, 7, -1)
    np.testing.assert_allclose(new[::6, ::6], grid[::3, ::3], atol=1e-6)  # corners stay


def test_what_is_not_of_big_vision(arrays, tmp_path):
    np.savez(tmp_path / "x.npz", **{k: v for k, v in arrays.items() if "Embed_0" not in k})
    with pytest.raises(WeightsError, match="params/txt/Embed_0/embedding is missing"):
        import_weights(tmp_path / "x.npz")
    odd = arrays | {"params/img/pos_embedding": np.zeros((1, 15, 16), np.float32)}
    np.savez(tmp_path / "x.npz", **odd)
    with pytest.raises(WeightsError, match="on 15 places"):
        import_weights(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(WeightsError, match="not known here"):
        import_weights(tmp_path / "x.npz")


@pytest.mark.parametrize("shape", [(), (0, 5, 3, 12), (5, 5, 3, 0)])
def test_arrays_of_nothing(arrays, tmp_path, shape):
    name = "params/img/embedding/kernel"
    np.savez(tmp_path / "x.npz", **(arrays | {name: np.zeros(shape, np.float32)}))
    with pytest.raises(WeightsError, match=f"{name} is of shape"):
        import_weights(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", **arrays, **{"params/img/encoderblock/x": np.float32(1)})
    with pytest.raises(WeightsError, match="not known here: params/img/encoderblock/x"):
        import_weights(tmp_path / "x.npz")
