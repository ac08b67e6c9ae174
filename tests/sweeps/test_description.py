"""Which trials a sweep has: grids, lists and draws; names; what is refused before anything runs."""

import errno
import fcntl
import re
import threading
import types

import pytest

from contrastive import cli
from contrastive.errors import ConfigError, UserError
from contrastive.sweeps import (
    IntUniform,
    LogUniform,
    Sweep,
    Uniform,
    grid,
    product,
    random,
    zipped,
)
from contrastive.sweeps.description import load_sweep
from contrastive.sweeps.folder import SweepFolder, make_trials
from contrastive.sweeps.launchers import find_launcher
from contrastive.sweeps.results import read_rows, write_results

RATES = {"optimizer.learning_rate": (1e-3, 1e-4), "batch_size": (8, 16)}


def trials_of(file):
    return make_trials(load_sweep(str(file)))


def test_grid_zip_product_and_sum():
    assert grid({"a": (1, 2), "b": (3, 4)}) == (
        {"a": 1, "b": 3},
        {"a": 1, "b": 4},
        {"a": 2, "b": 3},
        {"a": 2, "b": 4},
    )
    both = zipped({"a": (1, 2), "b": (3, 4)})
    assert both == ({"a": 1, "b": 3}, {"a": 2, "b": 4})
    assert product(both, grid({"c": (5, 6)}))[1] == {"a": 1, "b": 3, "c": 6}
    assert len(product(both, grid({"c": (5, 6)})) + both) == 6


def test_draws_are_a_function_of_the_seed_and_keep_their_beginning():
    choices = {
        "a": LogUniform(1e-4, 1e-2),
        "b": IntUniform(1, 3),
        "c": ("x", "y"),
        "d": Uniform(0, 1),
    }
    few, many = random(choices, count=3, seed=1), random(choices, count=50, seed=1)
    assert many[:3] == few
    assert random(choices, count=3, seed=2) != few
    assert {one["b"] for one in many} == {1, 2, 3}
    assert {one["c"] for one in many} == {"x", "y"}
    assert all(1e-4 <= one["a"] <= 1e-2 and 0 <= one["d"] <= 1 for one in many)
    below = sum(one["a"] < 1e-3 for one in many)  # the middle of the logarithms
    assert 15 < below < 35


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: zipped({"a": (1, 2), "b": (3,)}), "a has 2, b has 1"),
        (lambda: product(grid({"a": (1,)}), grid({"a": (2,)})), "two parts set 'a'"),
        (lambda: Sweep(name="s", base="x", settings=()), "has no trials"),
        (lambda: Sweep(name="s", base="x", settings=({"seed": 1},), seeds=(1,)), "'seed' twice"),
        (lambda: Sweep(name="s", base="x", fixed={"a": 1}, settings=({"a": 1},)), "'a' twice"),
        (lambda: Sweep(name="s", base="x", parallel=0), "parallel = 0"),
        (lambda: LogUniform(0, 1), "0 < low"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"retries": 1.5}, "retries = 1.5; a whole number from 0 on"),
        ({"settings": {"seed": 1}}, "have to be a tuple of {'KEY': value}"),
        ({"settings": ("seed",)}, "have to be a tuple of"),
    ],
)
def test_values_of_another_type_are_refused(given, message):
    # As from a file, where nothing checks types before
    wrong = types.SimpleNamespace(**(vars(Sweep(name="s", base="x")) | given))
    with pytest.raises(ConfigError, match=re.escape(message)):
        Sweep.__post_init__(wrong)  # pyright: ignore[reportArgumentType]


def test_names_are_stable_and_say_what_differs(sweep_file):
    file = sweep_file(f"grid({RATES!r})", fixed={"total_steps": 3})
    names = [trial.name for trial in trials_of(file)]
    assert names == [trial.name for trial in trials_of(file)]
    assert names[0].startswith("learning_rate=0.001,batch_size=8-")
    # The digest is of all settings, and of nothing else: not of the defaults of the day.
    assert names[0].endswith("-733b5702"), names[0]
    other = trials_of(sweep_file(f"grid({RATES!r})", fixed={"total_steps": 4}))
    assert not {trial.name for trial in other} & set(names)


def test_E17_a_grid_with_duplicates_has_no_run_twice(sweep_file):
    file = sweep_file(
        f"grid({RATES!r}) + ({{'optimizer.learning_rate': .001, 'batch_size': 16.0}},)"
    )
    with pytest.raises(ConfigError, match=r"batch_size = 16\.0"):
        trials_of(file)
    double = "({'batch_size': 8, 'optimizer.learning_rate': 1e-3}, {'loss.scale_init': None})"
    file = sweep_file(f"grid({RATES!r}) + {double} + ({{}},)")
    found = trials_of(file)
    assert len(found) == 5  # the second default is the first one
    assert [trial.recipe.batch_size for trial in found] == [8, 16, 8, 16, 16]


def test_E17_an_unknown_key_is_an_error_before_the_start(sweep_file, tmp_path):
    file = sweep_file("grid({'optimizer.learning_rat': (1e-3, 1e-4)})")
    with pytest.raises(ConfigError, match="learning_rat is not a known key; did you mean 'learn"):
        trials_of(file)
    assert not (tmp_path / "out").exists()


def test_seeds_come_in_turn_so_that_the_first_is_whole_early(sweep_file):
    found = trials_of(sweep_file(f"grid({RATES!r})", seeds=(0, 1)))
    assert [trial.recipe.seed for trial in found] == [0] * 4 + [1] * 4


def test_a_folder_keeps_numbers_when_its_sweep_grows(sweep_file, tmp_path):
    folder = SweepFolder(tmp_path / "out")

    def plan(settings):
        sweep = load_sweep(str(sweep_file(settings)))
        folder.plan(sweep, make_trials(sweep))
        return {trial.index: trial.recipe.batch_size for trial in folder.trials()}

    assert plan("grid({'batch_size': (8, 16)})") == {0: 8, 1: 16}
    assert plan("grid({'batch_size': (4, 16, 8)})") == {0: 8, 1: 16, 2: 4}
    assert plan("grid({'batch_size': (16, )})") == {1: 16}
    assert folder.trial(2).recipe.batch_size == 4
    with pytest.raises(UserError, match="numbered 0 to 2"):
        folder.trial(3)


def test_a_folder_of_another_sweep_is_refused(sweep_file, tmp_path):
    sweep = load_sweep(str(sweep_file("({},)")))
    SweepFolder(tmp_path / "out").plan(sweep, make_trials(sweep))
    other = Sweep(name="other", base=sweep.base)
    with pytest.raises(UserError, match="holds the sweep 'tiny', not 'other'"):
        SweepFolder(tmp_path / "out").plan(other, make_trials(other))
    with pytest.raises(UserError, match="is not the folder of a sweep"):
        SweepFolder(tmp_path).trials()


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("sweep.json", "{", "remove it and give the command that made the folder again"),
        ("sweep.json", "[1]", "remove it and give"),
        ("sweep.json", "{}", "there is no 'name'"),
        ("trials/NAME/trial.json", "[]", "there is no 'recipe'"),
        ("trials/NAME/trial.json", '{"recipe": {"seed": "x"}}', "seed"),
        ("trials/NAME/state.json", "\udcff", "remove it: the trial goes on from its checkpoint"),
        ("trials/NAME/state.json", '{"status": "dnoe"}', "status"),
        ("trials/NAME/state.json", '{"attempts": "two"}', "attempts"),
        ("trials/NAME/state.json", "null", "remove it: the trial"),
    ],
)
def test_a_damaged_file_is_a_sentence_that_says_what_to_do(
    sweep_file, tmp_path, capsys, name, text, words
):
    folder = SweepFolder(tmp_path / "out")
    sweep = load_sweep(str(sweep_file("({},)")))
    folder.plan(sweep, make_trials(sweep))
    file = folder.path / name.replace("NAME", folder.trial(0).name)
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert cli.main(["sweep", str(folder.path), "--status"]) == 2
    said = capsys.readouterr().err
    assert f"{file} is damaged" in said
    assert words in said


def test_agents_that_end_at_the_same_time_write_the_table_one_after_another(sweep_file, tmp_path):
    folder = SweepFolder(tmp_path / "out")
    sweep = load_sweep(str(sweep_file("({},)")))
    folder.plan(sweep, make_trials(sweep))
    other = threading.Thread(target=write_results, args=(folder, read_rows(folder)))
    with folder.locked():
        other.start()
        other.join(timeout=0.5)
        assert other.is_alive()
        assert not (folder.path / "results.md").exists()
    other.join(timeout=60)
    assert (folder.path / "results.md").exists()


def test_a_file_system_without_locks_is_a_sentence(sweep_file, tmp_path, monkeypatch):
    folder = SweepFolder(tmp_path / "out")
    sweep = load_sweep(str(sweep_file("({},)")))
    folder.plan(sweep, make_trials(sweep))

    def flock(lock, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UserError, match="a file system without locks"):
        folder.claimed(folder.trial(0).name).__enter__()
    with pytest.raises(UserError, match="without locks"):
        folder.plan(sweep, make_trials(sweep))


def test_files_and_launchers_that_are_none(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no file '.*mistyped\.py'"):
        load_sweep(str(tmp_path / "mistyped.py"))
    (tmp_path / "s.py").write_text(
        "from contrastive.sweeps import *\ndef get_sweep(): return random({'a': ()}, count=1)"
    )
    with pytest.raises(ConfigError, match=r"line 2 of .*s\.py fails .ValueError"):
        load_sweep(str(tmp_path / "s.py"))
    (tmp_path / "s.py").write_text("def get_sweep(): return {}")
    with pytest.raises(ConfigError, match="has to return a Sweep; got dict"):
        load_sweep(str(tmp_path / "s.py"))
    with pytest.raises(ConfigError, match="did you mean 'local'"):
        find_launcher("locl")
