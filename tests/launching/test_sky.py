"""Task files for SkyPilot."""

import pytest
import yaml

from contrastive import cli
from contrastive.errors import ConfigError
from contrastive.launching.sky import SkyMachine, task


def settings(**given):
    return SkyMachine(**{"topology": "h100:2x8", "bucket": "s3://b", **given})


def test_a_task_is_nodes_of_gpus_that_meet_at_the_first(make):
    made = task(make("/checkpoints/run", launcher="sky"), settings(cloud="aws"))
    assert (made["name"], made["num_nodes"]) == ("shapes-1", 2)
    assert made["resources"] == {
        "accelerators": "H100:8", "use_spot": True, "disk_size": 512, "cloud": "aws",
    }  # fmt: skip
    assert made["file_mounts"]["/checkpoints"] == {"source": "s3://b", "mode": "MOUNT"}
    assert 'CONTRASTIVE_PROCESS="$SKYPILOT_NODE_RANK"' in made["run"]
    assert "--xla_gpu_nccl_termination_timeout_seconds=2400" in made["run"]
    assert "CONTRASTIVE_LAUNCH" in made["envs"]


def test_wrong_settings_are_a_sentence():
    with pytest.raises(ConfigError, match="for TPUs use contrastive launch tpu or gke"):
        settings(topology="v5e:4x4")
    with pytest.raises(ConfigError, match="s3://NAME or gs://NAME"):
        settings(bucket="b")
    with pytest.raises(ConfigError, match="disk_gb=0 has to be at least 1"):
        settings(disk_gb=0)


def test_a_dry_run_prints_the_task(capsys):
    train = ("--", "train", "--config=configs/emoji.py:clip", "--workdir=/checkpoints/run")
    given = ("--on=launch/sky.py:h100-16", "--topology=none", "--dry-run")
    assert cli.main(["launch", "sky", *given, *train]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["num_nodes"] == 2
    assert cli.main(["launch", "sky", *given, *train[:-1], "--workdir=/home/run"]) == 2
    assert "lost with the machine; give a folder below" in capsys.readouterr().err
