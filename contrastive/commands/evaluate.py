"""``contrastive evaluate`` and the last act of ``contrastive train``."""

import json
import pathlib

from contrastive.evaluation.suite import Results, evaluate
from contrastive.inference import Model
from contrastive.loading import load
from contrastive.mesh import Devices
from contrastive.recipe import Recipe, read_recipe
from contrastive.whole import whole_file


def evaluate_run(workdir: pathlib.Path, *, devices: Devices) -> Results:
    """Measures the newest checkpoint of a run and writes ``evaluation.json``."""
    return save_evaluation(workdir, load(workdir, devices=devices), read_recipe(workdir))


def save_evaluation(workdir: pathlib.Path, model: Model, recipe: Recipe) -> Results:
    """Measures a model and writes ``evaluation.json``, whole or not at all."""
    results = evaluate(model, recipe, quick=False)
    with whole_file(workdir / "evaluation.json") as path:
        path.write_text(json.dumps(results, indent=2) + "\n")
    return results
