"""A job to launch, without a recipe's data."""

import pathlib

import pytest

from contrastive import config as config_lib
from contrastive.launching.job import make_job
from contrastive.recipe import Recipe


@pytest.fixture
def make(tiny):
    """``make(workdir)``: a job that trains the tiny recipe there."""

    def job(workdir, *, launcher="slurm", devices=None, name="Shapes 1"):
        tiny.name = name
        arguments = ["train", "--config=recipe.py:it's", f"--workdir={workdir}"]
        return make_job(
            config_lib.build(Recipe, tiny),
            arguments,
            pathlib.Path(workdir),
            launcher=launcher,
            devices=devices,
            plan={"skipped": "a test"},
        )

    return job


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """``tool(name, script)``: a command of this name, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def write(name, script):
        file = folder / name
        file.write_text(script)
        file.chmod(0o755)
        return file

    return write
