"""``contrastive plan``, and what its compilers mean for the other commands."""

import importlib.metadata
import importlib.util

import pytest

from contrastive import cli


class Plugin:
    def __init__(self, name):
        self.name = name


@pytest.fixture
def no_platform(monkeypatch):
    """A machine with the compilers for plans, where nobody has chosen a platform."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (Plugin("xla_cuda13"),))
    return monkeypatch


def platform():
    cli._without_absent_accelerators()
    return cli.os.environ.get("JAX_PLATFORMS")


def test_the_compilers_are_not_loaded_where_there_is_no_accelerator(no_platform):
    no_platform.setattr(cli, "_accelerator_is_here", lambda: False)
    assert platform() == "cpu"
    no_platform.setenv("JAX_PLATFORMS", "cuda")
    assert platform() == "cuda"


@pytest.mark.parametrize("present", ["device", "plugin"])
def test_accelerators_are_left_alone(no_platform, present):
    no_platform.setattr(cli, "_accelerator_is_here", lambda: present == "device")
    if present == "plugin":
        no_platform.setattr(importlib.metadata, "entry_points", lambda group: (Plugin("metal"),))
    assert platform() is None


def test_accelerators_are_known_by_their_device_files(tmp_path):
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    (tmp_path / "dev" / "vfio" / "vfio").touch()
    assert not cli._accelerator_is_here(tmp_path)
    (tmp_path / "dev" / "vfio" / "0").touch()
    assert cli._accelerator_is_here(tmp_path)


@pytest.mark.parametrize(
    "option",
    ["--restarts=-1", "--restarts=x", "--restart-wait=nan", "--lost-after=0", "--start-timeout=-1"],
)
def test_numbers_that_mean_nothing_are_refused(option, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--config=configs/clip.py:b16", "--workdir=runs/x", option])
    assert ended.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err.splitlines()[-1]


def test_an_unknown_machine_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    options = ["plan", "--config=configs/clip.py:b16", "--topology=v5x:4x4"]
    assert cli.main(options) == 2
    said = capsys.readouterr().err
    assert said.startswith("contrastive plan: --topology=v5x:4x4: there is no chip 'v5x'")
    assert said.count("\n") == 1
    assert cli.main(["plan", "--config=configs/clip.py:b15", "--topology=v5e:4x4"]) == 2
    assert "no published model 'b15'; known are b32, b16" in capsys.readouterr().err
