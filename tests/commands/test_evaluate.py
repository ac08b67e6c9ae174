"""Tasks and comparisons from the command line, on runs that were trained for a few steps."""

import io
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from rich.console import Console

from contrastive import config as config_lib
from contrastive.cli import main
from contrastive.commands.compare import compare_runs
from contrastive.commands.evaluate import read_results, write_results
from contrastive.commands.train import train
from contrastive.errors import UserError
from contrastive.evaluation.measured import Measured
from contrastive.recipe import Recipe
from contrastive.reporting import write_report


@pytest.fixture(scope="module")
def run(tiny_recipe, tmp_path_factory):
    config = tiny_recipe.copy_and_resolve_references()
    config.total_steps = 4
    config.data.csv = {"held_out_share": 0.3}
    recipe = config_lib.resolve(Recipe, config, [])
    workdir = tmp_path_factory.mktemp("runs") / "shapes"
    stream = io.StringIO()
    assert train(recipe, workdir, new=False, devices=jax.devices()[:1], stream=stream) == 0
    return workdir


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def similar(folder):
    rows = [
        ("a red circle", "a red bar", 4),
        ("a red circle", "a blue bar", 1),
        ("a green cross", "a green cross", 5),
        ("a black bar", "a purple square", 0),
    ]
    path = folder / "colours.jsonl"
    keys = ("sentence1", "sentence2", "score")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


def test_a_task_adds_to_what_is_there(copy, tmp_path, capsys):
    before = json.loads((copy / "evaluation.json").read_text())
    arguments = ["evaluate", str(copy), "--task=similarity", f"--data={similar(tmp_path)}"]
    assert main(arguments) == 0
    assert "spearman" in capsys.readouterr().out
    after = json.loads((copy / "evaluation.json").read_text())
    assert before.items() <= after.items()
    assert -1 <= after["colours/similarity/spearman"] <= 1
    assert main([*arguments, "--json", f"--output={tmp_path / 'other'}"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "other" / "evaluation.json").read_text()) == alone
    lists = read_results(copy).each
    assert lists["colours/similarity/spearman"].shape == (2, 4)
    assert "validation/image_to_text/recall@1" in lists
    assert "spearman" in write_report(copy).read_text()


def test_D11_the_checkpoints_own_pooler_and_another_beside_it(copy, tmp_path, capsys, caplog):
    data = similar(tmp_path)
    arguments = ["evaluate", str(copy), "--task=similarity", f"--data={data}", "--json"]
    assert main(arguments) == 0
    own = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--pooler=max"]) == 0
    both = json.loads(capsys.readouterr().out)
    assert both["colours/pooler"] == "mean"  # as config.model.text.pooling of the run
    assert both["colours with pooler max/pooler"] == "max"
    assert both["colours/similarity/pearson"] == own["colours/similarity/pearson"]
    other = both["colours with pooler max/similarity/pearson"]
    assert other != own["colours/similarity/pearson"]
    assert "'mean'; 'max' was asked for" in caplog.text
    kept = json.loads((copy / "evaluation.json").read_text())
    assert both.items() <= kept.items()
    config = json.loads((copy / "config.json").read_text())
    config["model"]["text"]["pooling"] = "max"  # what the checkpoint says is what counts
    (copy / "config.json").write_text(json.dumps(config))
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["colours/similarity/pearson"] == other


def test_pictures_by_task(copy, shapes_csv, capsys):
    names = copy / "names.txt"
    names.write_text("\n".join(f"a {c} {s}" for c in ("red", "green", "blue", "black", "orange", "purple") for s in ("circle", "square", "bar", "cross")))  # fmt: skip  # noqa: E501
    assert (
        main(["evaluate", f"--workdir={copy}", "--task=zero_shot", "--task=retrieval",
              f"--data={shapes_csv}", f"--classes={names}", "--name=shapes", "--json"]) == 0
    )  # fmt: skip
    got = json.loads(capsys.readouterr().out)
    assert got["shapes/zero_shot/classes"] == 24
    assert got["shapes/split"] == "validation"
    assert "shapes/text_to_image/r_precision" in got


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task=similarity"], "--task and --data go together"),
        (["--classes=cifar10"], "--classes needs --data"),
        (["--data=x.jsonl"], "--task and --data go together"),
        (["--task=similarity", "--data=nowhere.jsonl"], "there is no nowhere.jsonl"),
        (["--task=similarity", "--data=x.jsonl", "--most=0"], "have to be at least 1"),
        (["--output=x"], "--output goes with --task"),
        (["--pooler=cls"], "--pooler goes with --task"),
        (["--workdir=x"], "name the model once"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(run, arguments, message, capsys):
    assert main(["evaluate", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err


def measured(seed: int, better: float) -> Measured:
    hits = (np.random.default_rng(seed).random(200) < 0.4 + better).astype(float)
    results = Measured()
    results.mean("set/image_to_text/recall@1", hits)
    results["set/content"] = "x"
    results["set/geometry/alignment"] = 1.0 + better
    results["set/image_to_text/recall@1_chance"] = 0.01
    return results


def test_runs_side_by_side(tmp_path, capsys):
    for name, seed, better in (("one", 0, 0.0), ("two", 1, 0.4), ("three", 2, 0.0)):
        write_results(tmp_path / name, measured(seed, better))
    runs = [tmp_path / name for name in ("one", "two", "three")]
    assert main(["compare", *map(str, runs), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert [*got["metrics"]] == ["set/geometry/alignment", "set/image_to_text/recall@1"]
    recall = got["metrics"]["set/image_to_text/recall@1"]
    low, high = recall["difference_intervals"][0]
    assert 0.2 < low < recall["differences"][0] < high < 0.6
    assert recall["difference_intervals"][1][0] < 0 < recall["difference_intervals"][1][1]
    assert recall["intervals"][0][0] < recall["values"][0] < recall["intervals"][0][1]
    assert got["metrics"]["set/geometry/alignment"]["difference_intervals"] == [None, None]
    console = Console(file=io.StringIO(), width=160)
    rows = compare_runs(runs, console=console)
    assert [row.sure(1) for row in rows] == [False, True]
    assert not rows[1].sure(2)
    text = console.file.getvalue()
    assert "two − one" in text
    assert "[+0." in text
    assert "Not the same data" not in text


def test_other_queries_have_no_paired_interval(tmp_path):
    write_results(tmp_path / "one", measured(0, 0.0))
    other = measured(1, 0.4)
    other["set/content"] = "y"
    write_results(tmp_path / "two", other)
    console = Console(file=io.StringIO(), width=160)
    (_, recall) = compare_runs([tmp_path / "one", tmp_path / "two"], console=console)
    assert recall.differences[0] is not None
    assert recall.difference_intervals[0] is None
    assert "Not the same data in all runs" in (text := console.file.getvalue())
    assert text.rstrip().endswith(": set.")


def test_what_cannot_be_compared_is_named(tmp_path):
    write_results(tmp_path / "one", measured(0, 0.0))
    write_results(tmp_path / "two", Measured({"other/similarity/spearman": 0.5}))
    with pytest.raises(UserError, match="two runs or more"):
        compare_runs([tmp_path / "one"])
    with pytest.raises(UserError, match="has not been evaluated"):
        compare_runs([tmp_path / "one", tmp_path / "three"])
    with pytest.raises(UserError, match="shares no metric"):
        compare_runs([tmp_path / "one", tmp_path / "two"])
    (tmp_path / "two" / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        compare_runs([tmp_path / "one", tmp_path / "two"])


def test_damaged_results_are_named_and_do_not_stop_new_ones(tmp_path, caplog):
    folder = tmp_path / "one"
    write_results(folder, measured(0, 0.0))
    good = (folder / "evaluation.npz").read_bytes()
    for content in (b"", b"no zip", good[: len(good) // 2], good[:60] + b"????" + good[64:]):
        (folder / "evaluation.npz").write_bytes(content)
        with pytest.raises(UserError, match=r"evaluation\.npz is damaged"):
            read_results(folder)
    write_results(folder, Measured({"other/similarity/pairs": 4.0}))
    assert "evaluation.npz is damaged" in caplog.messages[0]
    assert {"set/geometry/alignment", "other/similarity/pairs"} <= set(read_results(folder))
    for content in ("[1]", "{", "\udc80", "[" * 100_000, '{"set/knn/top1": [1]}'):
        (folder / "evaluation.json").write_text(content, errors="surrogateescape")
        with pytest.raises(UserError, match=r"evaluation\.json is damaged"):
            read_results(folder)
    write_results(folder, measured(0, 0.0))
    assert "set/geometry/alignment" in read_results(folder)


def test_evaluations_at_the_same_time_keep_each_others_numbers(tmp_path):
    """Two processes that write into one folder, again and again."""
    code = (
        "import pathlib, sys\n"
        "from contrastive.commands.evaluate import write_results\n"
        "from contrastive.evaluation.measured import Measured\n"
        "for i in range(20):\n"
        "    found = Measured()\n"
        "    found.mean(f'{sys.argv[1]}{i}/knn/top1', __import__('numpy').ones(50))\n"
        "    write_results(pathlib.Path(sys.argv[2]), found)\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, name, str(tmp_path)]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    found = read_results(tmp_path)
    assert set(found) == {f"{name}{i}/knn/top1" for name in "ab" for i in range(20)}
    assert set(found.each) == set(found)


def test_a_folder_that_takes_no_file_is_said_before_anything_is_measured(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    assert main(["evaluate", str(tmp_path), "--task=similarity", "--data=x.jsonl"]) == 2
    assert "(Permission denied); --output takes another folder" in capsys.readouterr().err
    (tmp_path / ".evaluation.lock").mkdir()
    with pytest.raises(UserError, match="--output takes another folder"):
        write_results(tmp_path, measured(0, 0.0))


def test_two_files_that_were_not_written_together_have_no_intervals(tmp_path):
    for name in ("one", "two"):
        write_results(tmp_path / name, measured(0, 0.0))
    numbers = json.loads((tmp_path / "two" / "evaluation.json").read_text())
    numbers["set/image_to_text/recall@1"] = 0.9
    (tmp_path / "two" / "evaluation.json").write_text(json.dumps(numbers))
    console = Console(file=io.StringIO(), width=160)
    (_, recall) = compare_runs([tmp_path / "one", tmp_path / "two"], console=console)
    assert recall.intervals[0] is not None
    assert recall.intervals[1] is None
    assert recall.difference_intervals == (None,)


def test_names_in_brackets_are_no_markup(tmp_path):
    for name in ("[red]", "two"):
        write_results(tmp_path / name, Measured({"[b]/knn/top1": 0.5}))
    console = Console(file=io.StringIO(), width=160)
    compare_runs([tmp_path / "[red]", tmp_path / "two"], console=console)
    text = console.file.getvalue()
    assert "[b]/knn/top1" in text
    assert "two − [red]" in text


def test_what_is_no_run_is_not_evaluated_on_its_own_data(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"architectures": ["CLIPModel"]}')
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "is not the folder of a run, which would be measured" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--precision=int8", "--baselines"]) == 2
    assert "--baselines needs --data, and --task" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--task=guess", "--data=x"]) == 2
    assert "'guess' is no task: choose from retrieval" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--task=bitext", "--data=x", "--query-prompt=a",
                 "--without-self"]) == 2  # fmt: skip
    assert "--without-self has no effect on the task bitext" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--task=bitext", "--data=x",
                 f"--output={tmp_path / 'config.json'}"]) == 2  # fmt: skip
    assert "config.json is no folder" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
