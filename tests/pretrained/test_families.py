"""CLIP, SigLIP and open_clip's folders: what comes with the weights, both ways.

The committed models (`tests/parity/fixtures`) were written by the libraries themselves; see
`tests/parity/peer_weights.py`.
"""

import dataclasses
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import nnx
from PIL import Image
from tokenizers import models, pre_tokenizers

import contrastive
from contrastive.building import NO_TEXTS, initial_towers
from contrastive.cli import main
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.transforms import evaluation_image
from contrastive.errors import WeightsError
from contrastive.geometry import normalize
from contrastive.pretrained.exporting import export_weights
from contrastive.pretrained.families import Description
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.source import open_source
from contrastive.pretrained.tensors import read_tensors, write_safetensors
from contrastive.towers.layers import LayerNorm

FIXTURES = pathlib.Path(__file__).parents[1] / "parity" / "fixtures"
FAMILIES = {"clip": "huggingface", "siglip": "huggingface", "open_clip": "open_clip"}


def embed(towers, reference):
    pixels = jnp.asarray(reference["pixels"].transpose(0, 2, 3, 1))
    run = jax.jit(lambda p, ids: (towers.image(p), towers.encode_text(ids)))
    return [normalize(x) for x in run(pixels, jnp.asarray(reference["ids"], jnp.int32))]


def reference_of(folder):
    return dict(np.load(folder / "reference.npz"))


def rewrite(folder, change):
    """Changes the tensors of a folder."""
    file = folder / "model.safetensors"
    write_safetensors(file, change(read_tensors(file)))


def configure(folder, file="config.json", **changes):
    """Changes a configuration; ``a__b`` is the key b of the group a."""
    config = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    for key, value in changes.items():
        *groups, last = key.split("__")
        inner = config
        for group in groups:
            inner = inner[group]
        inner[last] = value
    (folder / file).write_text(json.dumps(config))


def give_tokenizer(folder, size=31):
    """Words ``w0 …`` and the markers that the committed models were made for."""
    pieces = [f"w{i}" for i in range(size - 2)] + ["<|startoftext|>", "<|endoftext|>"]
    backend = tokenizers.Tokenizer(
        models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="w0")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


@pytest.mark.parametrize("name", FAMILIES)
def test_embeddings_equal_the_librarys(copied, name):
    folder = copied(name)
    reference = reference_of(folder)
    found = import_weights(folder)
    for rows, key in zip(embed(found.towers, reference), ("image", "text"), strict=True):
        np.testing.assert_allclose(rows, normalize(reference[key]), atol=1e-5)


@pytest.mark.parametrize("name,form", FAMILIES.items())
def test_C09_import_and_export_give_the_same_bits(copied, name, form, tmp_path):
    folder = copied(name)
    found = import_weights(folder)
    export_weights(found.settings, found.towers, found.tokenizer, form, tmp_path / "out")
    before, after = (read_tensors(open_source(f).weights) for f in (folder, tmp_path / "out"))
    assert set(before) == set(after)
    for key, array in before.items():
        assert after[key].shape == array.shape
        assert after[key].tobytes() == array.tobytes(), key
    again = import_weights(tmp_path / "out")
    assert again.settings.model == found.settings.model
    assert again.settings.loss == found.settings.loss


def test_C02_the_activation_travels(copied, tmp_path, capsys):
    folder = copied("clip")
    give_tokenizer(folder)
    reference = reference_of(folder)
    native, exported, again = (tmp_path / name for name in ("native", "exported", "again"))
    assert main(["import", str(folder), f"--output={native}"]) == 0
    assert main(["export", str(native), "--format=huggingface", f"--output={exported}"]) == 0
    assert main(["import", str(exported), f"--output={again}"]) == 0
    assert json.loads((native / "config.json").read_text())["model"]["image"]["activation"] == (
        "quick_gelu"
    )
    assert json.loads((exported / "config.json").read_text())["text_config"]["hidden_act"] == (
        "quick_gelu"
    )
    texts = ["w3 w4", "w5 w6 w7", "w9"]
    pictures = np.random.default_rng(0).integers(0, 256, (3, 20, 20, 3), np.uint8)
    first = contrastive.load(folder)
    wanted = first.encode_text(texts), first.encode_image(pictures)
    np.testing.assert_allclose(
        first.encode_text(reference["ids"]), normalize(reference["text"]), atol=1e-5
    )
    for stage in (native, exported, again):
        model = contrastive.load(stage)
        np.testing.assert_allclose(model.encode_text(texts), wanted[0], atol=1e-6)
        np.testing.assert_allclose(model.encode_image(pictures), wanted[1], atol=1e-6)
    capsys.readouterr()
    conflict = "--config.model.image.activation=gelu"
    assert main(["import", str(folder), f"--output={tmp_path / 'other'}", conflict]) == 2
    assert "contradicts the weights, which have 'quick_gelu'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    agreed = "--config.model.image.activation=quick_gelu"
    assert main(["import", str(folder), f"--output={tmp_path / 'other'}", agreed]) == 0


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "relu"])
def test_activations_of_the_configuration(copied, name):
    folder = copied("clip")
    configure(folder, vision_config__hidden_act=name)
    if name == "relu":
        with pytest.raises(WeightsError, match="hidden_act = 'relu' is not known"):
            import_weights(folder)
        return
    found = import_weights(folder)
    assert found.settings.model.image.activation == name.replace("_pytorch", "")
    assert found.settings.model.text.activation == "quick_gelu"
    rows = embed(found.towers, reference_of(folder))
    assert np.abs(rows[0] - normalize(reference_of(folder)["image"])).max() > 1e-4


@pytest.mark.parametrize("epsilon,value", [(1e-5, 0.3015113), (1e-6, 0.7071068), (1e-7, 0.9534626)])
def test_C03_epsilon(copied, epsilon, value):
    norm = LayerNorm(2, epsilon=epsilon, rngs=nnx.Rngs(0))
    row = norm(jnp.array([[0.001, -0.001]]))
    np.testing.assert_allclose(row[0], [value, -value], rtol=1e-5)
    folder = copied("siglip")
    configure(folder, vision_config__layer_norm_eps=epsilon, text_config__layer_norm_eps=2e-6)
    towers = import_weights(folder).towers
    assert towers.image.norm.epsilon == epsilon
    assert towers.image.head.norm.epsilon == epsilon
    assert towers.image.transformer.blocks.norm1.epsilon == epsilon
    assert towers.text.norm.epsilon == 2e-6


def test_C03_epsilon_of_the_families(copied):
    assert import_weights(copied("clip")).settings.model.image.epsilon == 1e-5
    assert import_weights(copied("siglip")).settings.model.image.epsilon == 1e-6
    assert import_weights(copied("open_clip")).settings.model.text.epsilon == 1e-5


# --- C06, C08 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_C06_another_size_of_pictures(copied, name):
    folder = copied(name)
    plain, wide = import_weights(folder), import_weights(folder, image_size=30)
    same = import_weights(folder, image_size=20)
    first = 0 if name == "siglip" else 1
    old, new = (found.towers.image.positions[...] for found in (plain, wide))
    assert old.shape[0] == 16 + first
    assert new.shape[0] == 36 + first
    np.testing.assert_array_equal(new[:first], old[:first])
    np.testing.assert_array_equal(same.towers.image.positions[...], old)
    assert wide.settings.data.image_size == 30
    assert wide.towers.image(jnp.zeros((1, 30, 30, 3))).shape == (
        1,
        plain.settings.model.embedding_dim,
    )
    with pytest.raises(WeightsError, match="not a multiple of the patch size 5"):
        import_weights(folder, image_size=32)


def test_C06_what_was_resized_is_not_resized_again(copied, tmp_path):
    folder = copied("clip")
    wide = import_weights(folder, image_size=30)
    export_weights(wide.settings, wide.towers, wide.tokenizer, "huggingface", tmp_path / "wide")
    again = import_weights(tmp_path / "wide")
    np.testing.assert_array_equal(
        again.towers.image.positions[...], wide.towers.image.positions[...]
    )


def pooled(head, x):
    """SigLIP's head in NumPy, float64: attention by hand, then ``y + mlp(norm(y))``."""
    q, k, v = (
        np.einsum("...d,dhe->...he", x if i else head["query"], head["qkv"][:, i])
        + head["qkv_bias"][i]
        for i in range(3)
    )
    scores = np.einsum("qhe,nkhe->nhqk", q, k) / np.sqrt(q.shape[-1])
    attend = np.exp(scores - scores.max(-1, keepdims=True))
    attend /= attend.sum(-1, keepdims=True)
    return np.einsum("nhqk,nkhe,hed->nqd", attend, v, head["out"])[:, 0] + head["out_bias"]


def test_C08_attention_pooling(copied, tmp_path):
    folder = copied("siglip")
    before = read_tensors(folder / "model.safetensors")

    def silent(tensors):  # the MLP adds nothing: what is left is the attention
        for part in ("weight", "bias"):
            tensors[f"vision_model.head.mlp.fc2.{part}"] *= 0
        return tensors

    rewrite(folder, silent)
    found = import_weights(folder)
    head, width = found.towers.image.head, found.settings.model.image.width
    x = np.random.default_rng(0).normal(size=(2, 5, width)).astype(np.float32)
    values = {
        name: np.asarray(getattr(head.attention, name)[...], np.float64)
        for name in ("qkv", "qkv_bias", "out", "out_bias")
    }
    values["query"] = np.asarray(head.query[...], np.float64)
    np.testing.assert_allclose(head(jnp.asarray(x)), pooled(values, x), atol=1e-5)
    shuffled = head(jnp.asarray(x[:, [3, 1, 4, 0, 2]]))
    np.testing.assert_allclose(shuffled, head(jnp.asarray(x)), atol=1e-5)
    fused = before["vision_model.head.attention.in_proj_weight"]
    for i in range(3):
        rows = fused[i * width : (i + 1) * width]
        np.testing.assert_array_equal(values["qkv"][:, i].reshape(width, width), rows.T)
    assert found.towers.image(jnp.zeros((1, 20, 20, 3))).shape == (1, width)


def test_C08_heads_and_masks(copied):
    siglip, clip = import_weights(copied("siglip")), import_weights(copied("clip"))
    assert siglip.towers.text.projection.bias is not None
    assert not siglip.settings.model.text.causal
    for tower in (clip.towers.image, clip.towers.text):
        assert tower.projection.bias is None
    assert clip.settings.model.text.causal
    ids = jnp.asarray(reference_of(FIXTURES / "siglip")["ids"][:1], jnp.int32)
    changed = ids.at[0, -1].set((ids[0, -1] + 1) % 31)
    states = [siglip.towers.text._embed(i, jnp.dtype("float32")) for i in (ids, changed)]
    first = [siglip.towers.text.transformer(x)[0, 0] for x in states]
    assert np.abs(first[0] - first[1]).max() > 1e-6  # the first place sees the last one


# --- C09, C10, C12 ----------------------------------------------------------------------------


def test_C09_twins_in_two_namings(copied, tmp_path):
    folder = copied("open_clip")
    found = import_weights(folder)
    export_weights(found.settings, found.towers, None, "huggingface", tmp_path / "twin")
    a = read_tensors(open_source(folder).weights)
    b = read_tensors(tmp_path / "twin" / "model.safetensors")
    np.testing.assert_array_equal(a["visual.proj"].T, b["visual_projection.weight"])
    np.testing.assert_array_equal(a["text_projection"].T, b["text_projection.weight"])
    np.testing.assert_array_equal(
        a["visual.conv1.weight"], b["vision_model.embeddings.patch_embedding.weight"]
    )
    for i in range(2):
        block = f"text_model.encoder.layers.{i}.self_attn"
        for part, name in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
            np.testing.assert_array_equal(
                a[f"transformer.resblocks.{i}.attn.{part}"],
                np.concatenate([b[f"{block}.{letter}_proj.{name}"] for letter in "qkv"]),
            )
    kernel = found.towers.image.patches.kernel[...].reshape(5, 5, 3, -1)
    np.testing.assert_array_equal(kernel.transpose(3, 2, 0, 1), a["visual.conv1.weight"])
    assert "vision_model.pre_layrnorm.weight" in b
    twin, reference = import_weights(tmp_path / "twin"), reference_of(folder)
    for ours, theirs in zip(
        embed(found.towers, reference), embed(twin.towers, reference), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_C09_both_spellings_are_read(copied):
    folder = copied("clip")
    plain = import_weights(folder).towers.image.norm_before.scale[...]
    rewrite(folder, lambda t: {n.replace("pre_layrnorm", "pre_layernorm"): x for n, x in t.items()})
    np.testing.assert_array_equal(import_weights(folder).towers.image.norm_before.scale[...], plain)


def test_C10_buffers_prefixes_and_wrappers(copied, save_torch, tmp_path, capsys):
    folder = copied("clip")
    give_tokenizer(folder)
    tensors = read_tensors(folder / "model.safetensors")
    extra = "text_model.embeddings.position_ids"
    rewrite(folder, lambda t: t | {extra: np.arange(9)[None]})
    assert import_weights(folder).ignored == (extra,)
    assert main(["import", str(folder), f"--output={tmp_path / 'a'}"]) == 0
    assert f"hold no parameter: {extra}" in capsys.readouterr().out
    (folder / "model.safetensors").unlink()
    wrapped = {f"module.{name}": array for name, array in tensors.items()}
    save_torch(folder / "pytorch_model.bin", {"state_dict": wrapped, "optimizer": {"step": 1}})
    found = import_weights(folder)
    np.testing.assert_array_equal(
        found.towers.text.tokens[...], tensors["text_model.embeddings.token_embedding.weight"]
    )


def test_C10_missing_extra_and_mis_shaped_tensors_are_all_listed(copied, tmp_path, capsys):
    folder = copied("clip")
    give_tokenizer(folder)

    def damage(tensors):
        del tensors["vision_model.encoder.layers.1.mlp.fc1.bias"]
        tensors["text_projection.weight"] = np.zeros((8, 13), np.float32)
        tensors["logit_scale"] = np.arange(1)
        return tensors | {"surprise": np.zeros(2, np.float32)}

    rewrite(folder, damage)
    out = tmp_path / "out"
    assert main(["import", str(folder), f"--output={out}"]) == 2
    said = capsys.readouterr().err
    for words in (
        "1 missing: vision_model.encoder.layers.1.mlp.fc1.bias",
        "1 not known here: surprise",
        "text_projection.weight is float32[8, 13], expected float[8, 12]",
        "logit_scale is int64[1], expected float[]",
    ):
        assert words in said
    assert not out.exists()


def test_C12_scalars(copied, tmp_path):
    folder = copied("clip")
    value = import_weights(folder).towers.log_scale[...]
    rewrite(folder, lambda t: t | {"logit_scale": t["logit_scale"].reshape(1)})
    found = import_weights(folder)
    assert found.towers.log_scale[...] == value
    assert found.towers.bias is None
    export_weights(found.settings, found.towers, None, "huggingface", tmp_path / "out")
    written = read_tensors(tmp_path / "out" / "model.safetensors")
    assert written["logit_scale"].shape == ()
    assert not any("bias" in name for name in written if "logit" in name)

    folder = copied("siglip")
    tensors = read_tensors(folder / "model.safetensors")
    assert tensors["logit_bias"].shape == (1,)
    rewrite(folder, lambda t: t | {"logit_bias": t["logit_bias"].reshape(())})
    found = import_weights(folder)
    assert found.towers.bias[...] == tensors["logit_bias"][0]
    export_weights(found.settings, found.towers, None, "huggingface", tmp_path / "out2")
    written = read_tensors(tmp_path / "out2" / "model.safetensors")
    assert written["logit_bias"].shape == written["logit_scale"].shape == (1,)


# --- C13 --------------------------------------------------------------------------------------


def test_C13_pictures_belong_to_the_weights(copied, tmp_path):
    picture = np.full((400, 800, 3), 255, np.uint8)
    picture[:, :100] = picture[:, 700:] = (255, 0, 0)
    shown = {}
    for name in ("clip", "siglip"):
        found = import_weights(copied(name))
        data = found.settings.data
        shown[name] = evaluation_image(
            Image.fromarray(picture), data.image_size, data.preprocessing, data.resize
        )
    assert (shown["clip"] == 255).all()
    for edge in (0, -1):
        assert (shown["siglip"][:, edge] == (255, 0, 0)).all()

    folder = copied_under(copied, "siglip", tmp_path)
    configure(
        folder,
        "preprocessor_config.json",
        size={"height": 20, "width": 20},
        resample=2,
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.4, 0.5, 0.6],
    )
    found = import_weights(folder)
    assert found.settings.data.preprocessing == "stretch"
    assert found.settings.data.resize.interpolation == "bilinear"
    assert found.settings.model.pixel_mean == (0.1, 0.2, 0.3)
    export_weights(found.settings, found.towers, None, "huggingface", tmp_path / "out")
    written = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    assert written["size"] == {"height": 20, "width": 20}
    assert written["resample"] == 2
    assert written["image_std"] == [0.4, 0.5, 0.6]
    assert not written["do_center_crop"]


def copied_under(copied, name, tmp_path):
    shutil.rmtree(tmp_path / name)
    return copied(name)


@pytest.mark.parametrize(
    "changes,words",
    [
        ({"size": {"shortest_edge": 24}, "crop_size": 24}, "cropped to {'height': 24"),
        ({"do_center_crop": False}, "resized to {'shortest_edge': 20}"),
        ({"rescale_factor": 0.1}, "not divided by 255"),
        ({"do_resize": False}, "do_resize is false"),
        ({"resample": 9}, "resample = 9"),
        ({"image_mean": [0.5]}, "three numbers"),
        ({"image_mean": 7}, "three numbers"),
    ],
)
def test_C13_rules_that_are_not_known_or_contradict_the_model(copied, changes, words):
    folder = copied("clip")
    configure(folder, "preprocessor_config.json", **changes)
    with pytest.raises(WeightsError, match=words.replace("{", r"\{").replace("}", r"\}")):
        import_weights(folder)


def test_C13_a_share_of_the_middle(copied):
    folder = copied("clip")
    configure(
        folder,
        "preprocessor_config.json",
        size={"shortest_edge": 25},
        crop_size={"height": 20, "width": 20},
    )
    data = import_weights(folder).settings.data
    assert data.resize.share == 0.8
    assert data.resize.centre == "floor"


# --- What is no model that is known here --------------------------------------------------------


def test_unknown_architectures(copied, tmp_path, capsys):
    folder = copied("clip")
    configure(folder, model_type="flava")
    assert main(["import", str(folder), f"--output={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert "architecture that is not known here (flava)" in said
    assert said.count("\n") == 1
    (folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"no configuration says .* --model-config"):
        import_weights(folder)
    (tmp_path / "notes.txt").write_text("nothing but words")
    assert main(["import", str(tmp_path / "notes.txt"), f"--output={tmp_path / 'out'}"]) == 2
    assert "holds no weights" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(WeightsError, match="there is no folder or file"):
        contrastive.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match="one file of weights"):
        contrastive.load(tmp_path / "empty")


def test_a_configuration_elsewhere(copied, tmp_path):
    folder = copied("clip")
    config = tmp_path / "clip.json"
    (folder / "config.json").rename(config)
    found = import_weights(folder / "model.safetensors", model_config=config)
    assert found.family.name == "clip"
    with pytest.raises(WeightsError, match="there is no file"):
        import_weights(folder, model_config=tmp_path / "nothing.json")
    config.write_text("[")
    with pytest.raises(WeightsError, match="is damaged"):
        import_weights(folder, model_config=config)


def test_damaged_configurations(copied):
    folder = copied("siglip")
    configure(folder, text_config__hidden_size="wide")
    with pytest.raises(WeightsError, match="hidden_size = 'wide' has to be a int"):
        import_weights(folder)


def test_what_a_format_cannot_hold_is_said(copied, tmp_path, capsys):
    folder = copied("siglip")
    assert main(["export", str(folder), "--format=open_clip", f"--output={tmp_path / 'x'}"]) == 2
    assert "model.image.pooling = 'map' (it would be 'cls')" in capsys.readouterr().err
    assert main(["export", str(folder), "--format=onnx", f"--output={tmp_path / 'x'}"]) == 2
    assert "known are huggingface, open_clip" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_model_without_a_tokenizer_takes_ids(copied, tmp_path, capsys):
    folder = copied("clip")
    model = contrastive.load(folder)
    with pytest.raises(contrastive.errors.UserError, match="came without a tokenizer"):
        model.encode_text("w3")
    reference = reference_of(folder)
    rows = model.encode_text(reference["ids"])
    np.testing.assert_allclose(rows, normalize(reference["text"]), atol=1e-5)
    assert main(["import", str(folder), f"--output={tmp_path / 'out'}"]) == 2
    assert "without a tokenizer" in capsys.readouterr().err


def test_ids_that_are_not_padded_are_refused_where_padding_is_read(copied):
    model, ids = contrastive.load(copied("siglip")), reference_of(FIXTURES / "siglip")["ids"]
    assert len(model.encode_text(ids)) == len(ids)
    with pytest.raises(ValueError, match="rows of 3 ids; this model reads padding, so rows of 9"):
        model.encode_text(ids[:, :3])


def test_an_image_tower_alone(tmp_path, copied):
    """A ViT made of the committed CLIP's image tower, by the names of its own family."""
    folder = copied("clip")
    found = import_weights(folder)
    image = dataclasses.replace(
        found.settings.model.image, pre_norm=False, patch_bias=True, projection="none"
    )
    model = dataclasses.replace(found.settings.model, image=image, text=None, embedding_dim=16)
    data = dataclasses.replace(found.settings.data, text_length=16, tokenizer=TokenizerConfig())
    settings = Description(data=data, model=model)
    towers = initial_towers(settings, NO_TEXTS, 0)
    export_weights(settings, towers, None, "huggingface", tmp_path / "vit")
    again = import_weights(tmp_path / "vit")
    assert again.family.name == "vit"
    pictures = np.random.default_rng(0).integers(0, 256, (2, 20, 20, 3), np.uint8)
    model = contrastive.load(tmp_path / "vit")
    rows = model.encode_image(pictures)
    wanted = normalize(jax.jit(lambda x: towers.encode_image(x))(jnp.asarray(pictures)))
    np.testing.assert_allclose(rows, wanted, atol=1e-5)
    with pytest.raises(contrastive.errors.UserError, match="encodes pictures only"):
        model.encode_text("a cat")
    assert main(["import", str(tmp_path / "vit"), f"--output={tmp_path / 'native'}"]) == 0
    np.testing.assert_allclose(
        contrastive.load(tmp_path / "native").encode_image(pictures), rows, atol=1e-6
    )
