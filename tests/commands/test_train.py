"""The main job, end to end on a tiny set: files, resume, signals, errors, devices."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import nnx

from contrastive import config as config_lib
from contrastive.commands.best import evaluation_names
from contrastive.commands.train import train
from contrastive.errors import ConfigError, UserError
from contrastive.loading import load
from contrastive.objectives import pairs
from contrastive.recipe import Recipe
from contrastive.training.loop import NonFiniteLoss


def run(config, workdir, *overrides, devices=1, new=False):
    recipe = config_lib.resolve(Recipe, config, [f"--config.{o}" for o in overrides])
    stream = io.StringIO()
    status = train(recipe, workdir, new=new, devices=jax.devices()[:devices], stream=stream)
    assert status == 0
    return stream.getvalue()


def read_metrics(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


TIMING = ("examples_per_second", "input_wait_share", "host_share")


def training_lines(workdir):
    return [
        {k: v for k, v in line.items() if k not in TIMING}
        for line in read_metrics(workdir)
        if "loss" in line
    ]


def test_a_run_leaves_everything_that_people_look_for(tiny, tmp_path):
    workdir = tmp_path / "run"
    said = run(tiny, workdir, "log.tensorboard=true", "eval.every=4")
    for name in ("config.json", "metrics.jsonl", "evaluation.json", "report/index.html"):
        assert (workdir / name).is_file(), name
    assert list((workdir / "tensorboard").iterdir())
    assert sorted(p.name for p in (workdir / "checkpoints").iterdir()) == ["4", "8"]
    assert f"Report: {workdir / 'report' / 'index.html'}" in said
    lines = training_lines(workdir)
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert {
        "loss",
        "scale",
        "temperature",
        "accuracy/image_to_text",
        "accuracy/text_to_image",
        "positive_cosine/mean",
        "positive_cosine/min",
        "negative_cosine/mean",
        "negative_cosine/min",
        "negative_cosine/max",
        "gradient_norm",
        "learning_rate",
    } <= set(lines[0])
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert any("evaluation/" in key for line in read_metrics(workdir) for key in line)


def test_A17_the_logged_scale_is_not_its_logarithm(tiny, tmp_path):
    run(tiny, tmp_path / "run", "total_steps=3")
    first = training_lines(tmp_path / "run")[0]
    np.testing.assert_allclose(first["scale"], 1 / 0.07, rtol=1e-6)
    np.testing.assert_allclose(first["temperature"], 0.07, rtol=1e-6)


@pytest.mark.parametrize(
    "loss",
    ["clip", *(pytest.param(name, marks=pytest.mark.slow) for name in ("siglip", "info_nce"))],
)
def test_resuming_equals_never_having_stopped_to_the_last_bit(tiny, tmp_path, loss):
    tiny.loss = {"name": loss}
    tiny.average_decay = 0.9
    tiny.eval.every = 3
    run(tiny, tmp_path / "whole")
    run(tiny, tmp_path / "parts", "stop_at=3")
    evaluation = tmp_path / "parts" / "evaluation.json"
    assert not evaluation.exists()
    evaluation.write_text('{"what `contrastive evaluate` said": 0}')  # of the unfinished run
    said = run(tiny, tmp_path / "parts")
    assert "at step 3" in said
    assert training_lines(tmp_path / "parts") == training_lines(tmp_path / "whole")
    lines = [
        [line for line in read_metrics(tmp_path / name) if "loss" not in line]
        for name in ("whole", "parts")
    ]
    assert [line["step"] for line in lines[0]] == [3, 6]
    assert lines[1] == lines[0]
    whole, parts = (
        json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("whole", "parts")
    )
    assert parts == whole


def test_steps_after_the_checkpoint_are_done_again_and_logged_once(tiny, tmp_path):
    workdir = tmp_path / "run"
    run(tiny, workdir, "stop_at=6")
    expected = training_lines(workdir)
    os.rename(workdir / "checkpoints" / "6", tmp_path / "lost")
    run(tiny, workdir)
    lines = training_lines(workdir)
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert lines[:6] == expected


def test_the_last_step_is_logged(tiny, tmp_path):
    run(tiny, tmp_path / "run", "total_steps=5", "log.every=3")
    assert [line["step"] for line in training_lines(tmp_path / "run")] == [3, 5]


def test_a_finished_run_is_not_trained_again(tiny, tmp_path):
    run(tiny, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    numbers = (tmp_path / "run" / "evaluation.json").read_text()
    said = run(tiny, tmp_path / "run")
    assert "Report:" in said
    assert "Evaluating" not in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    (tmp_path / "run" / "evaluation.json").write_text(numbers[:20])  # cut: measured again
    assert "Evaluating" in run(tiny, tmp_path / "run")
    assert (tmp_path / "run" / "evaluation.json").read_text() == numbers


def test_another_configuration_in_the_same_workdir_is_refused(tiny, tmp_path):
    run(tiny, tmp_path / "run", "stop_at=2")
    with pytest.raises(ConfigError, match=r"optimizer.learning_rate was 0.003, now 0.1"):
        run(tiny, tmp_path / "run", "optimizer.learning_rate=0.1")
    run(tiny, tmp_path / "run", "optimizer.learning_rate=0.01", "stop_at=2", new=True)
    assert (tmp_path / "run.old-1" / "metrics.jsonl").is_file()


def test_a_run_that_was_refused_before_its_first_step_does_not_hold_the_folder(tiny, tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        run(tiny, tmp_path / "run", "data.source=mistyped.csv")
    (tmp_path / "run" / "tokenizer.json").write_text("of other captions")
    run(tiny, tmp_path / "run", "stop_at=2")
    assert [line["step"] for line in training_lines(tmp_path / "run")][-1] == 2
    with pytest.raises(ConfigError, match="holds a run of another configuration"):
        run(tiny, tmp_path / "run", "data.source=mistyped.csv")


def test_eight_devices_give_the_losses_of_one(tiny, tmp_path):
    for devices in (1, 8):
        run(tiny, tmp_path / str(devices), "total_steps=20", "checkpoint.every=0", devices=devices)
    one, eight = ([line["loss"] for line in training_lines(tmp_path / name)] for name in ("1", "8"))
    np.testing.assert_allclose(eight, one, rtol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_devices_and_another_mesh(tiny, tmp_path):
    run(tiny, tmp_path / "whole")
    run(tiny, tmp_path / "moved", "stop_at=3", devices=1)
    run(tiny, tmp_path / "moved", "stop_at=6", "mesh.fsdp=2", devices=4)
    run(tiny, tmp_path / "moved", "mesh.slice=2", "mesh.fsdp=2", "mesh.tensor=2", devices=8)
    whole, moved = (
        [line["loss"] for line in training_lines(tmp_path / name)] for name in ("whole", "moved")
    )
    np.testing.assert_allclose(moved, whole, rtol=1e-5)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_checkpoint(tiny, tmp_path):
    with pytest.raises(NonFiniteLoss, match=r"at step \d+; (checkpoint|there is no)"):
        run(tiny, tmp_path / "run", "optimizer.learning_rate=1e38", "optimizer.clip_norm=none")


def test_a_batch_that_does_not_divide_is_refused_before_anything_is_written(tiny, tmp_path):
    with pytest.raises(ConfigError, match="8 devices"):
        run(tiny, tmp_path / "run", "batch_size=20", devices=8)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data.image_size=7"], "data.image_size = 7 cannot be halved"),
        (["model.text.length=2"], "model.text.length = 2 is configured; the data needs"),
        (["model.text.projection=none", "model.embedding_dim=32"], "with width 16 and"),
    ],
)
def test_towers_that_do_not_fit_are_one_sentence(tiny, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run(tiny, tmp_path / "run", *overrides)


def test_a_damaged_config_is_one_sentence(tiny, tmp_path):
    run(tiny, tmp_path / "run", "stop_at=2")
    (tmp_path / "run" / "config.json").write_text('{"name": ')
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        run(tiny, tmp_path / "run")


def test_E09_the_step_is_traced_once(tiny, tmp_path, monkeypatch):
    traces = []
    watch = pairs.watch
    monkeypatch.setattr(pairs, "watch", lambda *a: traces.append(1) or watch(*a))
    run(tiny, tmp_path / "run", "total_steps=7", "eval.every=3", "checkpoint.every=2")
    assert len(traces) == 1


def test_E16_a_termination_signal_saves_first_and_the_run_goes_on(tiny, tmp_path):
    recipe = tmp_path / "recipe.py"
    tiny.total_steps = 2000
    tiny.checkpoint.every = 0
    recipe.write_text(
        f"from ml_collections import ConfigDict\ndef get_config():\n"
        f"    return ConfigDict({tiny.to_dict()!r})\n"
    )
    workdir = tmp_path / "run"
    command = [sys.executable, "-m", "contrastive.cli", "train"]
    command += [f"--config={recipe}", f"--workdir={workdir}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if (workdir / "metrics.jsonl").exists() and len(read_metrics(workdir)) > 3:
                break
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    (step,) = (int(p.name) for p in (workdir / "checkpoints").iterdir())
    assert f"after step {step} of 2000" in output
    assert training_lines(workdir)[-1]["step"] == step


def test_a_warm_start_takes_what_fits_and_says_what_does_not(tiny, tmp_path):
    run(tiny, tmp_path / "first", "stop_at=2", "average_decay=0.9")
    tiny.init_from = str(tmp_path / "first")
    # A learning rate so small that one step shows the parameters that training started with.
    said = run(
        tiny, tmp_path / "second", "stop_at=1", "optimizer.learning_rate=1e-30",
        "model.image.widths=(8, 24)",
    )  # fmt: skip
    assert f"Warm start from {tmp_path / 'first'}: " in said
    assert "image/stages/1/kernel ([3, 3, 8, 16] there, [3, 3, 8, 24] here)" in said
    assert "text" not in said.partition("as initialised")[2].partition("\n")[0]
    first, second = load_towers(tmp_path / "first"), load_towers(tmp_path / "second")
    np.testing.assert_array_equal(second.text.tokens[...], first.text.tokens[...])
    np.testing.assert_array_equal(
        second.image.stages[0].kernel[...], first.image.stages[0].kernel[...]
    )
    assert (tmp_path / "second" / "tokenizer.json").read_bytes() == (
        tmp_path / "first" / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize("source", ["gone.parquet", "folder"])
def test_data_that_was_there_may_come_back_and_a_wrong_path_will_not(tiny, tmp_path, source):
    tiny.data = {"source": str(tmp_path / source)}
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    for workdir, status in ((tmp_path / "new", 2), (begun, 74)):
        with pytest.raises(UserError) as caught:
            run(tiny, workdir)
        assert caught.value.status == status
        assert ("The run was trained on this data before" in str(caught.value)) == (status == 74)


def load_towers(workdir):
    model = load(workdir)
    return nnx.merge(model._graphdef, model._parameters)


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_by_a_number_of_the_evaluation(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"best = 'evaluation/x' needs evaluations"):
        run(tiny, tmp_path / "run", "checkpoint.best=evaluation/x")
    best = "evaluation/train/image_to_text/recall@1"
    for name in ("loss", best):
        folder = tmp_path / name.rpartition("/")[2]
        run(tiny, folder, f"checkpoint.best={name}", "checkpoint.best_mode=min", "eval.every=2",
            "checkpoint.keep=1", "checkpoint.every=2")  # fmt: skip
        values = {
            line["step"]: line[name]
            for line in read_metrics(folder)
            if name in line and line["step"] % 2 == 0
        }
        best_steps = {step for step, value in values.items() if value == min(values.values())}
        kept = {int(path.name) for path in (folder / "checkpoints").iterdir()}
        assert len(kept) <= 2
        assert kept & best_steps
    measured = [line for line in read_metrics(folder) if best in line]
    recipe = config_lib.resolve(Recipe, tiny, [])
    names = evaluation_names(recipe, 1.0, jax.devices()[:1])
    assert {*names} == {name for name in measured[0] if name.startswith("evaluation/")}


@pytest.mark.parametrize(
    "best, words",
    [
        ("evaluation/train/image_to_text/recall@2", "did you mean evaluation/.*recall@1"),
        ("train/image_to_text/recall@1", "did you mean evaluation/train/image_to_text/recall@1"),
        ("los", "did you mean loss. Known are .*gradient_norm"),
        ("foo", "is not measured; known are .*gradient_norm"),
    ],
)
def test_the_best_by_a_number_that_is_not_measured_is_refused_before_the_first_step(
    tiny, tmp_path, best, words
):
    with pytest.raises(ConfigError, match=words):
        run(tiny, tmp_path / "run", f"checkpoint.best={best}", "eval.every=4")
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.slow
def test_a_profile_is_written(tiny, tmp_path):
    run(tiny, tmp_path / "run", "train.profile=3:4", "stop_at=5")
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_microbatches_may_change_when_a_run_goes_on(tiny, tmp_path):
    run(tiny, tmp_path / "whole")
    run(tiny, tmp_path / "parts", "stop_at=4", "train.microbatches=4")
    run(tiny, tmp_path / "parts", "train.microbatches=2")
    whole, parts = (
        [line["loss"] for line in training_lines(tmp_path / name)] for name in ("whole", "parts")
    )
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    with pytest.raises(ConfigError, match=r"train.microbatches = 3 does not divide"):
        run(tiny, tmp_path / "other", "train.microbatches=3")


@pytest.mark.slow
def test_every_rule_frozen_towers_and_accumulation_train_and_resume(tiny, tmp_path):
    tiny.average_decay = 0.9
    tiny.optimizer.multipliers = (("image/.*", None),)
    tiny.optimizer.accumulate = 2
    run(tiny, tmp_path / "whole", "optimizer.name=muon", "stop_at=5")
    run(tiny, tmp_path / "parts", "optimizer.name=muon", "stop_at=3")
    run(tiny, tmp_path / "parts", "optimizer.name=muon", "stop_at=5")
    assert training_lines(tmp_path / "parts") == training_lines(tmp_path / "whole")
    with pytest.raises(ConfigError, match=r"matches no parameter .*text/tokens"):
        run(tiny, tmp_path / "other", "optimizer.multipliers=(('vision/.*', None),)")


def test_synthetic_pairs_train_and_resume(tiny, tmp_path):
    """No file is read, nothing is evaluated, and stopping changes nothing."""
    tiny.data = {"source": "synthetic", "image_size": 16, "text_length": 8}
    tiny.data.tokenizer = {"vocabulary_size": 300}
    tiny.data.synthetic = {"examples": 64}
    said = run(tiny, tmp_path / "whole")
    assert "64 training pairs" in said
    assert json.loads((tmp_path / "whole" / "evaluation.json").read_text()) == {}
    run(tiny, tmp_path / "parts", "stop_at=4")
    run(tiny, tmp_path / "parts")
    assert training_lines(tmp_path / "parts") == training_lines(tmp_path / "whole")
