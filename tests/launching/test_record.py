"""What a run is made from; and a process that would train something else does not start."""

import json
import subprocess

import pytest

from contrastive import config as config_lib
from contrastive.errors import UserError
from contrastive.launching import job as job_lib
from contrastive.launching import record as record_lib
from contrastive.recipe import Recipe


@pytest.fixture
def recipe(tiny):
    return config_lib.build(Recipe, tiny)


@pytest.fixture
def record(recipe):
    return record_lib.make_record(
        recipe, ["contrastive", "train"], launcher="local", plan={"fits": True, "collectives": []}
    )


def test_a_record_says_what_a_run_is_made_from(record, tmp_path):
    assert record["versions"].keys() >= {"python", "jax", "flax", "optax"}
    assert record["plan"] == {"fits": True}
    record_lib.write_record(tmp_path, record, {"processes": 2})
    assert json.loads((tmp_path / "launch.json").read_text()) == {**record, "run": {"processes": 2}}


def test_the_commit_and_what_differs_from_it(tmp_path):
    def git(*words):
        subprocess.run(
            ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True
        )

    assert record_lib.git_state(tmp_path, {"CONTRASTIVE_COMMIT": "c0ffee"})["commit"] == "c0ffee"
    git("init", "--quiet")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    clean = record_lib.git_state(tmp_path)
    assert len(clean["commit"]) == 40
    assert (clean["dirty"], clean["changed"]) == (False, [])
    (tmp_path / "code.py").write_text("2")
    dirty = record_lib.git_state(tmp_path)
    assert (dirty["dirty"], dirty["changed"]) == (True, ["code.py"])


def test_another_configuration_or_code_than_launched_does_not_start(record, recipe, tiny):
    record_lib.check_as_launched(None, recipe, devices=1)
    record_lib.check_as_launched(record, recipe, devices=1)
    tiny.seed = 1
    other = config_lib.build(Recipe, tiny)
    with pytest.raises(UserError, match=r"where the run was launched.*launch again"):
        record_lib.check_as_launched(record, other, devices=1)
    with pytest.raises(UserError, match="not the code that was launched"):
        record_lib.check_as_launched({**record, "code": "x"}, recipe, devices=1)


def test_E02_another_number_of_devices_than_launched_for_does_not_start(record, recipe):
    wanted = {**record, "devices": 64}
    record_lib.check_as_launched(wanted, recipe, devices=64)
    with pytest.raises(UserError, match="launched for 64 devices and JAX sees 8"):
        record_lib.check_as_launched(wanted, recipe, devices=8)


def test_the_record_comes_through_the_environment(record):
    assert record_lib.given_record({}) is None
    assert record_lib.given_record({record_lib.VARIABLE: json.dumps(record)}) == record
    for damaged in ("{", "[]", "{}"):
        with pytest.raises(UserError, match="is not what a launcher writes"):
            record_lib.given_record({record_lib.VARIABLE: damaged})


def plan(monkeypatch, tmp_path, found, *, topology="v5e:4x4", force=False):
    asked, said = [], []
    monkeypatch.setattr(job_lib, "_make_plan", lambda *given: asked.append(given) or found)
    result = job_lib.planned(
        "c.py", ["--config.a=1"], topology, digest="d", workdir=tmp_path, force=force,
        say=said.append,
    )  # fmt: skip
    return result, asked, said


def test_what_does_not_fit_is_not_started_unless_forced(monkeypatch, tmp_path):
    found = {"fits": False, "advice": ["8.35 GiB too much."], "topology": "v5e:4x4"}
    with pytest.raises(UserError, match=r"does not fit v5e:4x4: 8.35 GiB too much\. .*--force"):
        plan(monkeypatch, tmp_path, found)
    result, _, said = plan(monkeypatch, tmp_path, found, force=True)
    assert result == found
    assert "started by --force" in said[-1]


def test_a_plan_is_made_once_for_the_same_run(monkeypatch, tmp_path, record):
    fits = {"fits": True, "topology": "v5e:4x4"}
    assert plan(monkeypatch, tmp_path, fits)[1] == [("c.py", ["--config.a=1"], "v5e:4x4")]
    record_lib.write_record(tmp_path, {**record, "configuration": "d", "plan": fits}, {})
    assert plan(monkeypatch, tmp_path, {})[:2] == (fits, [])
    assert plan(monkeypatch, tmp_path, fits, topology="v5e:8x8")[1]
    assert plan(monkeypatch, tmp_path, fits, topology="none")[0].keys() == {"skipped"}
