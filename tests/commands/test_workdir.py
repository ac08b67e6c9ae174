"""The run's folder: locked, set aside, refused in one sentence."""

import os
import pathlib

import pytest

from contrastive.commands.workdir import opened, set_aside
from contrastive.errors import UserError


def test_a_second_run_in_the_same_folder_is_refused_with_the_pid(tmp_path):
    refused = pytest.raises(UserError, match=f"pid {os.getpid()}")
    with opened(tmp_path / "run"), refused, opened(tmp_path / "run"):
        pass
    with opened(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="choose another --workdir"),
        opened(tmp_path / "file" / "run"),
    ):
        pass


def test_an_earlier_run_is_kept_beside(tmp_path):
    assert set_aside(tmp_path / "run") is None
    for number in (1, 2):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text("{}")
        (tmp_path / "run" / "mark").write_text(str(number))
        assert set_aside(tmp_path / "run") == tmp_path / f"run.old-{number}"
    assert (tmp_path / "run.old-1" / "mark").read_text() == "1"


def test_what_is_no_run_or_is_running_is_not_moved_away(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="not the folder of a run"):
        set_aside(tmp_path / "mine")
    with opened(tmp_path / "run"):
        (tmp_path / "run" / "config.json").write_text("{}")
        with pytest.raises(UserError, match=f"pid {os.getpid()}"):
            set_aside(tmp_path / "run")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "run"]
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_the_address_of_a_bucket_is_refused_and_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(UserError, match=r"--workdir=gs://bucket/run: .* mount the bucket"),
        opened(pathlib.Path("gs://bucket/run")),
    ):
        pass
    assert not list(tmp_path.iterdir())
