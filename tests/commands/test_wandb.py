"""The real package ``wandb``, offline: what a run that was resumed leaves for ``wandb sync``."""

import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

missing = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None,
    reason="wandb is not installed (pip install -e '.[wandb]')",
)
BLOCK = 32768  # the file is a log of LevelDB after seven bytes


def read_rows(file):
    """The rows of an offline run, as {step: numbers}; no step comes twice."""
    from wandb.proto import wandb_internal_pb2

    content, position, part, rows = file.read_bytes(), 7, b"", {}
    while position + 7 <= len(content):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        part += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record.FromString(part)
            part = b""
            if record.WhichOneof("record_type") == "history":
                items = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
                row = {name: json.loads(value) for name, value in items.items()}
                assert row["_step"] not in rows
                rows[row["_step"]] = row
    return rows


def train(tiny, folder, *overrides):
    recipe = folder / "recipe.py"
    recipe.write_text(
        f"from ml_collections import ConfigDict\ndef get_config():\n"
        f"    return ConfigDict({tiny.to_dict()!r})\n"
    )
    command = [sys.executable, "-m", "contrastive.cli", "train", f"--config={recipe}"]
    command += [f"--workdir={folder / 'run'}", *(f"--config.{o}" for o in overrides)]
    environment = os.environ | {"WANDB_MODE": "offline"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@missing
@pytest.mark.slow
def test_an_offline_run_that_was_resumed_has_every_step_once(tiny, tmp_path):
    tiny.log.wandb = "contrastive-tests"
    tiny.eval.every = 4
    assert "Weights & Biases: " in train(tiny, tmp_path, "stop_at=6")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "6")  # steps 5 and 6 are done again
    assert "at step 4" in train(tiny, tmp_path)
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    identity = json.loads((tmp_path / "run" / "wandb.json").read_text())["id"]
    assert [file.stem for file in files] == [f"run-{identity}"] * 2
    first, second = map(read_rows, files)
    assert sorted([*first, *second]) == list(range(1, 9))
    rows = first | second
    for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        step = line.pop("step")
        for name in line.keys() & {"loss", "scale", "evaluation/train/geometry/alignment"}:
            assert rows[step][name] == line[name]
    assert "evaluation/train/geometry/alignment" in rows[4]
