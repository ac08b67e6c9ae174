"""A run on pictures of several aspects, from a table to embeddings."""

import csv
import io
import json

import jax
import numpy as np
import pytest

import contrastive
from contrastive import config as config_lib
from contrastive.cli import main
from contrastive.commands.evaluate import evaluate_run
from contrastive.commands.train import train
from contrastive.recipe import Recipe
from tests.conftest import COLOURS, SHAPES, draw

ASPECTS = ((24, 24), (40, 16), (16, 40), (57, 20))


@pytest.fixture(scope="module")
def settings(tiny_recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("aspects")
    rows = []
    for i, (colour, shape) in enumerate((c, s) for c in COLOURS for s in SHAPES):
        for j in range(2):
            name = f"{colour}-{shape}-{j}.png"
            draw(colour, shape, 3 * j).resize(ASPECTS[(i + j) % 4]).save(folder / name)
            rows.append((name, f"a {colour} {shape}"))
    with open(folder / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *rows])
    config = tiny_recipe.copy_and_resolve_references()
    config.data.source, config.data.preprocessing = str(folder / "pairs.csv"), "naflex"
    config.data.resize, config.data.csv = {"patch": 4}, {"held_out_share": 0.3}
    config.model["image"] = {
        "kind": "naflex", "patch_size": 4, "grid": 4, "width": 16, "depth": 1, "heads": 2
    }  # fmt: skip
    config.checkpoint = {"every": 0}
    config.eval = {"every": 0, "baselines": True}
    return config


def run(settings, workdir, devices=1, **changes):
    config = settings.copy_and_resolve_references()
    for key, value in changes.items():
        config[key] = value
    recipe = config_lib.resolve(Recipe, config, [])
    kwargs = {"new": False, "devices": jax.devices()[:devices], "stream": io.StringIO()}
    assert train(recipe, workdir, **kwargs) == 0
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def trained(settings, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "aspects"
    metrics = run(settings, workdir, total_steps=12)
    return workdir, [line["loss"] for line in metrics if "loss" in line]


def test_it_learns_and_is_evaluated(trained):
    workdir, losses = trained
    assert len(losses) == 12
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    before = json.loads((workdir / "evaluation.json").read_text())
    assert before["validation/image_to_text/queries"] > 5
    again = evaluate_run(workdir, devices=jax.devices()[:2])
    for name, value in before.items():
        assert again[name] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-5))


@pytest.mark.slow
def test_pictures_of_any_aspect_are_embedded(trained, settings, tmp_path):
    workdir, _ = trained
    model = contrastive.load(workdir)
    images = [draw("red", "cross", 0).resize(size) for size in ASPECTS]
    rows = model.encode_image(images)
    assert rows.shape == (4, 16)
    for image, row in zip(images, rows, strict=True):
        np.testing.assert_allclose(model.encode_image(image)[0], row, atol=1e-5)
    squashed = model.encode_image([image.resize((24, 24)) for image in images[1:]])
    assert np.abs(squashed - rows[1:]).max() > 1e-3  # proportions are seen
    folder, out = tmp_path / "pictures", tmp_path / "rows.npz"
    folder.mkdir()
    for i, image in enumerate(images):
        image.save(folder / f"{i}.png")
    assert main(["embed", str(folder), f"--workdir={workdir}", f"--output={out}"]) == 0
    np.testing.assert_allclose(np.load(out)["embeddings"], rows, atol=1e-5)


@pytest.mark.slow
def test_eight_devices_and_chunks_take_the_same_steps(settings, tmp_path):
    one = run(settings, tmp_path / "one", total_steps=3)
    mesh = {"mesh": {"fsdp": 2}, "train": {"microbatches": 2}}
    eight = run(settings, tmp_path / "eight", devices=4, total_steps=3, **mesh)
    for a, b in zip(one, eight, strict=True):
        if "loss" in a:
            assert b["loss"] == pytest.approx(a["loss"], rel=2e-5)
