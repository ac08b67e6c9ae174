"""A run that starts from another library's weights."""

import csv
import io
import json
import pathlib
import re

import jax
import numpy as np
import pytest
from flax import nnx

from contrastive import config as config_lib
from contrastive.commands.evaluate import evaluate_tasks
from contrastive.commands.train import train
from contrastive.commands.weights import export_model, import_model
from contrastive.errors import ConfigError
from contrastive.evaluation.tasks import TaskOptions
from contrastive.loading import load, open_model
from contrastive.recipe import Recipe, load_recipe
from tests.pretrained.test_families import FIXTURES, give_tokenizer

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The committed CLIP with a tokenizer: as it was published, and as a folder of ours."""
    import shutil

    root = tmp_path_factory.mktemp("imported")
    shutil.copytree(FIXTURES / "clip", root / "clip")
    give_tokenizer(root / "clip")
    import_model(root / "clip", root / "model")
    return root


def recipe(imported, shapes_csv, *overrides):
    settings = [
        f"--config.data.source={shapes_csv}",
        "--config.total_steps=2",
        "--config.batch_size=8",
        "--config.eval.every=0",
        "--config.eval.baselines=false",
        "--config.log.tensorboard=false",
        *(f"--config.{override}" for override in overrides),
    ]
    return load_recipe(f"{ROOT / 'configs' / 'finetune.py'}:{imported / 'model'}", settings)


def run(settings, workdir):
    stream = io.StringIO()
    assert train(settings, workdir, new=False, devices=jax.devices()[:1], stream=stream) == 0
    return stream.getvalue()


def parameters(folder):
    flat = nnx.to_flat_state(nnx.state(open_model(folder, devices=jax.local_devices()[:1]).towers))
    return {"/".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in flat}


@pytest.mark.parametrize("start", ["model", "clip"])
def test_an_imported_tower_stays_frozen(imported, shapes_csv, tmp_path, start):
    frozen = "optimizer.multipliers=(('image/.*', None),)"
    settings = recipe(
        imported, shapes_csv, frozen, "optimizer.learning_rate=0.01", "optimizer.warmup_steps=0",
        f"init_from={imported / start}",
    )  # fmt: skip
    said = run(settings, tmp_path / "run")
    assert f"Warm start from {imported / start}: 38 of 38 parameters loaded." in said
    before, after = parameters(imported / "clip"), parameters(tmp_path / "run")
    for name, array in before.items():
        if name.startswith("image/"):
            np.testing.assert_array_equal(after[name], array, err_msg=name)
    assert np.abs(after["text/projection/kernel"] - before["text/projection/kernel"]).max() > 1e-3
    pictures = np.random.default_rng(0).integers(0, 256, (2, 20, 20, 3), np.uint8)
    np.testing.assert_array_equal(
        load(tmp_path / "run").encode_image(pictures),
        load(imported / "clip").encode_image(pictures),
    )


def test_imported_published_and_exported_weights_are_measured_alike(imported, shapes_csv, tmp_path):
    """The same numbers of the same weights in three forms, on one device and on eight."""
    export_model(imported / "model", tmp_path / "exported", "huggingface")
    classes = tmp_path / "names.json"
    rows = csv.DictReader(shapes_csv.read_text().splitlines())
    names = sorted({row["caption"] for row in rows})
    classes.write_text(json.dumps(names))
    options = TaskOptions(data=str(shapes_csv), name="shapes", classes=str(classes))
    tasks = ["retrieval", "zero_shot", "geometry"]
    found = {
        (folder.name, count): evaluate_tasks(
            folder, tasks, options, output=tmp_path / f"{folder.name}{count}",
            devices=jax.devices()[:count],
        )
        for folder, count in (
            (imported / "model", 1), (imported / "clip", 1), (tmp_path / "exported", 8)
        )
    }  # fmt: skip
    first, *others = found.values()
    assert first["shapes/zero_shot/images"] > 1
    for other in others:
        assert other.keys() == first.keys()
        for name, value in first.items():
            assert other[name] == pytest.approx(value, abs=2e-6), name


@pytest.mark.slow
def test_another_size_of_pictures_and_a_new_head(imported, shapes_csv, tmp_path):
    settings = recipe(
        imported, shapes_csv, "data.image_size=30", "model.embedding_dim=12",
        "optimizer.learning_rate=1e-30", "total_steps=1",
    )  # fmt: skip
    said = run(settings, tmp_path / "run")
    assert "image/projection/kernel ([16, 8] there, [16, 12] here)" in said
    assert "resized from 4 to 6 patches a side" in said
    after, before = parameters(tmp_path / "run"), parameters(imported / "clip")
    assert after["image/positions"].shape == (37, 16)
    np.testing.assert_allclose(after["image/positions"][0], before["image/positions"][0])
    np.testing.assert_allclose(after["text/tokens"], before["text/tokens"])


@pytest.mark.parametrize(
    "change,words",
    [
        ("model.image.activation=gelu", "model.image.activation = 'gelu', but .* 'quick_gelu'"),
        ("model.text.epsilon=0.001", "model.text.epsilon = 0.001, but .* 1e-05"),
        ("model.text.heads=4", "model.text.heads = 4, but"),
    ],
)
def test_towers_are_used_as_they_were_trained(imported, shapes_csv, tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        run(recipe(imported, shapes_csv, change), tmp_path / "run")


def test_the_recipe_needs_a_model(imported, tmp_path):
    file = str(ROOT / "configs" / "finetune.py")
    with pytest.raises(ConfigError, match="needs the folder of an imported model"):
        load_recipe(file)
    with pytest.raises(
        ConfigError, match=f"there is no {re.escape(str(tmp_path / 'config.json'))}"
    ):
        load_recipe(f"{file}:{tmp_path}")
    with pytest.raises(ConfigError, match="contrastive import"):
        load_recipe(f"{file}:{imported / 'clip'}")
    full = config_lib.to_dict(load_recipe(f"{file}:{imported / 'model'}"))
    assert (
        config_lib.build(Recipe, full).model
        == open_model(imported / "clip", devices=jax.local_devices()).recipe.model
    )
