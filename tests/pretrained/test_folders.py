"""Folders of runs and of imported models: which is which, what is exported of them."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import contrastive
from contrastive.assembly import make_program
from contrastive.building import initial_towers
from contrastive.cli import main
from contrastive.data.config import DataConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import train_tokenizer
from contrastive.errors import ConfigError, UserError, WeightsError
from contrastive.folders import description, is_run
from contrastive.mesh import MeshConfig, make_mesh
from contrastive.objectives import LossConfig
from contrastive.pretrained.exporting import choose, export_weights
from contrastive.pretrained.families import Description
from contrastive.pretrained.importing import import_weights
from contrastive.recipe import Recipe
from contrastive.towers import HeadConfig, ResNetConfig, TwoTowerConfig, VisionTransformerConfig
from contrastive.warm_start import _check_meaning, _Earlier, _resized, _weights
from contrastive.whole import new_folder

VIT = VisionTransformerConfig(
    width=16, depth=1, heads=2, patch_size=4, pooling="cls", projection="none"
)


@pytest.mark.parametrize("content", ["3", "[1]", '"total_steps"', "{}", "[" * 100_000, "{"])
def test_what_is_no_run(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    assert not is_run(tmp_path)
    with pytest.raises(UserError):
        contrastive.load(tmp_path)


def test_a_new_folder(tmp_path):
    new_folder(tmp_path / "a b" / "c")
    new_folder(tmp_path / "a b" / "c")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "a b", tmp_path / "file"):
        with pytest.raises(UserError, match="exists already and is no empty folder"):
            new_folder(path)
    with pytest.raises(UserError, match=r"cannot be made \(Not a directory\); choose another"):
        new_folder(tmp_path / "file" / "x")


def test_a_folder_that_cannot_be_made_is_a_sentence(copied, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    source, out = str(copied("bert")), f"--output={tmp_path / 'file' / 'x'}"
    for command in (["import", source, out], ["export", source, "--format=huggingface", out]):
        assert main(command) == 2
        assert "cannot be made" in capsys.readouterr().err


def test_an_imported_model_is_not_imported_again(copied, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(copied("bert")), "--output=my model"]) == 0
    assert main(["import", "my model", "--output=again"]) == 2
    assert "my model is the folder of a run or of an imported model" in capsys.readouterr().err


def test_a_run_on_texts_is_exported_without_the_tower_it_never_had(copied, tmp_path):
    found = import_weights(copied("bert"))
    text = dataclasses.replace(found.settings.model, image=TwoTowerConfig().image)
    data = dataclasses.replace(
        found.settings.data, pairs="texts", source="x.csv", query_prefix="query: "
    )
    loss = LossConfig(name="info_nce")
    recipe = Recipe(name="x", total_steps=1, data=data, model=text, loss=loss)
    settings = description(recipe, found.tokenizer)
    export_weights(settings, found.towers, found.tokenizer, "huggingface", tmp_path / "out")
    again = import_weights(tmp_path / "out")
    assert again.settings.model == found.settings.model
    said = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    assert said["prompts"] == {"query": "query: "}
    own = dataclasses.replace(recipe, model=dataclasses.replace(text, shared=False))
    with pytest.raises(WeightsError, match=r"cannot say model\.shared = False"):
        export_weights(
            description(own, found.tokenizer),
            found.towers,
            found.tokenizer,
            "huggingface",
            tmp_path / "own",
        )


def test_a_run_on_views_is_exported_without_texts_and_head(copied, tmp_path):
    tokenizer = import_weights(copied("bert")).tokenizer
    data = DataConfig(pairs="views", image_size=8, preprocessing="stretch")
    model = TwoTowerConfig(image=VIT, embedding_dim=16, head=HeadConfig(layers=1, output=8))
    recipe = Recipe(
        name="x", total_steps=1, data=data, model=model, loss=LossConfig(name="nt_xent")
    )
    towers = initial_towers(recipe, tokenizer, 0)
    assert towers.text is None
    settings = description(recipe, tokenizer)
    export_weights(settings, towers, tokenizer, "huggingface", tmp_path / "vit")
    again = import_weights(tmp_path / "vit")
    np.testing.assert_array_equal(again.towers.image.positions[...], towers.image.positions[...])
    assert not (tmp_path / "vit" / "tokenizer.json").exists()


def test_the_reasons_of_all_families_are_one_text():
    with pytest.raises(WeightsError, match=r"transformer\. siglip: .* texts\.$") as error:
        choose(Description(data=DataConfig(), model=TwoTowerConfig()), "huggingface")
    assert ".." not in str(error.value)


@pytest.mark.parametrize(
    "pairs,tower",
    [("captions", "text"), ("captions", "image"), ("views", "image"), ("texts", "text")],
)
def test_training_needs_the_towers_of_its_pairs(pairs, tower):
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    loss = {"captions": "clip", "views": "nt_xent", "texts": "info_nce"}[pairs]
    other = {"image": "text", "text": "image"}[tower]
    model = TwoTowerConfig(**{tower: None, other: getattr(TwoTowerConfig(), other)})
    data = DataConfig(pairs=pairs, source="x.csv")
    recipe = Recipe(name="x", total_steps=1, data=data, model=model, loss=LossConfig(name=loss))
    with pytest.raises(ConfigError, match=f"config.model.{tower} = None, but config.data.pairs"):
        make_program(recipe, mesh)


@pytest.mark.parametrize("name,value", [("early_stride", True), ("first_stride", 2)])
def test_strides_that_no_shape_tells_have_to_be_those_of_the_training(name, value):
    trained = _Earlier(TwoTowerConfig(image=ResNetConfig()), 32, {}, lambda target: target, None)
    ours = TwoTowerConfig(image=ResNetConfig(**{name: value}))
    with pytest.raises(ConfigError, match=f"config.model.image.{name} = {value}, but"):
        _check_meaning(trained, ours, {"image"})


@pytest.mark.parametrize("name,method", [("clip", "bicubic"), ("open_clip", "bicubic_antialias")])
def test_C06_a_start_from_weights_resizes_as_their_library_does(copied, name, method):
    folder = copied(name)
    earlier = _weights(folder)
    assert earlier.resampling == method
    wanted = import_weights(folder, image_size=30).towers.image.positions[...]
    path = ("image", "positions")
    table = import_weights(folder).towers.image.positions[...]
    assert earlier.shapes[path] == table.shape
    found = _resized(table, jax.numpy.zeros(wanted.shape), (4, 6), earlier.resampling)
    np.testing.assert_array_equal(found, wanted)


def test_texts_with_broader_terms_have_no_form_elsewhere(copied, tmp_path):
    found = import_weights(copied("bert"))
    config = TokenizerConfig(kind="words", broader=3)
    tokenizer = train_tokenizer(["a horse"], length=8, config=config)
    with pytest.raises(WeightsError, match="no tokenizer that puts broader terms"):
        export_weights(found.settings, found.towers, tokenizer, "huggingface", tmp_path / "out")
