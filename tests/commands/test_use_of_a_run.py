"""A trained run in use, from disk: load, evaluate again, report, search, embed."""

import io
import json

import jax
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

import contrastive
from contrastive import config as config_lib
from contrastive.cli import main
from contrastive.commands import embed as embed_module
from contrastive.commands.embed import embed
from contrastive.commands.evaluate import evaluate_run
from contrastive.commands.search import search
from contrastive.commands.train import train
from contrastive.compression import compress, read_rows
from contrastive.errors import CheckpointError, DataError, UserError
from contrastive.recipe import Recipe
from contrastive.reporting import write_report


@pytest.fixture(scope="module")
def run(tiny_recipe, tmp_path_factory):
    """A few steps on the shapes, with a moving average: enough to be used."""
    config = tiny_recipe.copy_and_resolve_references()
    config.total_steps = 6
    config.data.csv = {"held_out_share": 0.3}
    config.average_decay = 0.9
    config.eval.baselines = True
    recipe = config_lib.resolve(Recipe, config, [])
    workdir = tmp_path_factory.mktemp("runs") / "shapes"
    status = train(recipe, workdir, new=False, devices=jax.devices()[:1], stream=io.StringIO())
    assert status == 0
    return workdir


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100)


def test_a_run_that_is_loaded_evaluates_to_the_same_numbers(run):
    """The moving average is restored, on another number of devices too."""
    before = json.loads((run / "evaluation.json").read_text())
    assert before["validation/image_to_text/queries"] > 5
    assert "validation/image_to_text/recall@1_random_init" in before
    again = evaluate_run(run, devices=jax.devices()[:2])
    assert again.keys() == before.keys()
    for name, value in before.items():
        assert again[name] == (value if isinstance(value, str) else pytest.approx(value, abs=1e-5))


def test_the_public_load(run):
    model = contrastive.load(run)
    images = model.encode_image([Image.new("RGB", (24, 24), "red")])
    texts = model.encode_text(["a red square", "a blue bar"])
    assert model.similarity(images, texts).shape == (1, 2)
    assert model.scale == pytest.approx(1 / 0.07, rel=0.05)


def test_damaged_checkpoints_are_passed_over_and_none_is_an_error(run, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(CheckpointError, match="no readable checkpoint"):
        contrastive.load(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="no tokenizer"):
        contrastive.load(tmp_path)
    with pytest.raises(UserError, match="is not the folder of a run"):
        contrastive.load(tmp_path / "nowhere")


def test_the_report_shows_the_run(run):
    text = write_report(run).read_text()
    assert "shapes" in text
    assert "data:image/png" in text
    assert "No examples are shown" not in text


def test_search_prints_the_pictures_and_writes_a_page(run):
    console = quiet()
    found = search(run, "a red circle", top=3, console=console)
    said = console.file.getvalue()
    assert len(found) == 3
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert len({hit.encoded for hit in found}) == 3
    for hit in found:
        assert f"{hit.score:.3f}" in said
        assert hit.name in said
        assert hit.key in said
    page = run / "search" / "a-red-circle.html"
    assert str(page) in said
    assert found[0].name in page.read_text()


def test_search_shows_pictures_in_a_terminal_with_colours(run):
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=100)
    search(run, "a red circle", top=2, console=console)
    assert "▀" in console.file.getvalue()


def test_search_in_a_folder_of_your_own(run, tmp_path):
    Image.new("RGB", (30, 20), "red").save(tmp_path / "b.png")
    Image.new("RGB", (30, 20), "blue").save(tmp_path / "a.JPG", "jpeg")
    (tmp_path / "broken.png").write_bytes(b"no")
    (tmp_path / "notes.txt").write_text("not a picture")
    console = quiet()
    found = search(run, "red", images=tmp_path, console=console)
    assert sorted(hit.key for hit in found) == ["a.JPG", "b.png"]
    assert "among 2 pictures, 1 unreadable left out" in console.file.getvalue()
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no pictures"):
        search(run, "red", images=tmp_path / "empty", console=quiet())
    with pytest.raises(UserError, match="is not a folder"):
        search(run, "red", images=tmp_path / "nowhere", console=quiet())
    with pytest.raises(UserError, match="give some words"):
        search(run, "  ", console=quiet())


def test_embed_a_folder_in_stable_order_without_what_cannot_be_read(run, tmp_path):
    folder = tmp_path / "pictures"
    (folder / "sub").mkdir(parents=True)
    colours = {"b.png": "red", "a.png": "blue", "sub/c.webp": "green"}
    for name, colour in colours.items():
        Image.new("RGB", (20, 20), colour).save(folder / name)
    (folder / "broken.gif").write_bytes(b"GIF89a")
    console = quiet()
    embed(run, folder, tmp_path / "out.npz", console=console)
    with np.load(tmp_path / "out.npz") as data:
        assert data["names"].tolist() == ["a.png", "b.png", "sub/c.webp"]
        assert data["skipped"].tolist() == ["broken.gif"]
        rows = data["embeddings"]
    assert rows.dtype == np.float32
    expected = contrastive.load(run).encode_image([folder / name for name in sorted(colours)])
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    said = console.file.getvalue()
    assert "3 pictures, 16 numbers each" in said
    assert "1 could not be read" in said
    assert "broken.gif" in said


def test_embed_the_lines_of_a_text_file(run, tmp_path):
    (tmp_path / "lines.txt").write_text("a red circle\n\n  a blue bar \r\n")
    found = embed(run, tmp_path / "lines.txt", tmp_path / "out", console=quiet())
    assert list(found.names) == ["a red circle", "a blue bar"]
    assert list(found.skipped) == [("line 2", "empty")]
    with np.load(tmp_path / "out.npz") as data:
        expected = contrastive.load(run).encode_text(["a red circle", "a blue bar"])
        np.testing.assert_allclose(data["embeddings"], expected, atol=1e-6)


def test_the_name_of_a_very_long_line_is_its_beginning(run, tmp_path, monkeypatch):
    """NumPy gives every name the room of the longest one: a line of 2 MB made a file of GBs."""
    monkeypatch.setattr(embed_module, "_NAMES", 2000)
    (tmp_path / "lines.txt").write_text("word " * 9000 + "\na blue bar\n")
    embed(run, tmp_path / "lines.txt", tmp_path / "out", console=quiet())
    with np.load(tmp_path / "out.npz") as data:
        assert [len(name) for name in data["names"]] == [1000, 10]
    with pytest.raises(UserError, match=r"first 17 entries .* take 1 to 16"):
        embed(run, tmp_path / "lines.txt", tmp_path / "no", dim=17, console=quiet())


def test_embed_says_what_is_wrong(run, tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    cases = {
        "nowhere": "there is no",
        "empty.txt": "no line with text",
        "binary.txt": "is not UTF-8",
    }
    for name, message in cases.items():
        with pytest.raises(UserError, match=message):
            embed(run, tmp_path / name, tmp_path / "out.npz", console=quiet())
    with pytest.raises(UserError, match="there is no folder"):
        embed(run, tmp_path / "empty.txt", tmp_path / "no" / "out.npz", console=quiet())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"no")
    with pytest.raises(UserError, match=r"none of the 1 pictures .*x\.png: decode error"):
        embed(run, tmp_path / "bad", tmp_path / "out.npz", console=quiet())
    assert not list(tmp_path.glob("*.npz*"))


@pytest.mark.parametrize("precision, size", [("float16", 32), ("int8", 16), ("binary", 2)])
def test_compressed_rows_in_a_file(run, tmp_path, precision, size):
    (tmp_path / "lines.txt").write_text("a red circle\na blue bar\na green cross\n")
    console = quiet()
    for name, options in (("whole", {}), ("small", {"precision": precision})):
        target = tmp_path / f"{name}.npz"
        found = embed(run, tmp_path / "lines.txt", target, console=console, **options)
    assert f"16 numbers each in {size} bytes ({precision})" in console.file.getvalue()
    rows = compress(found.rows, precision).rows()
    np.testing.assert_allclose(read_rows(tmp_path / "small.npz"), rows, atol=1e-6)
    np.testing.assert_allclose(read_rows(tmp_path / "whole.npz"), found.rows, atol=1e-6)
    embed(run, tmp_path / "lines.txt", tmp_path / "short", dim=4, console=console)
    assert np.load(tmp_path / "short.npz")["embeddings"].shape == (3, 4)


def test_what_compressed_rows_cost(run, capsys):
    arguments = ["evaluate", str(run), "--precision", "int8", "binary", "--dims", "8"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    forms = ["float32", "int8", "binary"]
    assert list(found) == [*forms, *(f"{form}, first 8" for form in forms)]
    assert [found[form]["bytes_per_row"] for form in found] == [64, 16, 2, 32, 8, 1]
    name = "validation/image_to_text/recall@1"
    whole = json.loads((run / "evaluation.json").read_text())
    assert found["float32"][name] == pytest.approx(whole[name])
    assert json.loads((run / "compressed.json").read_text()) == found
    assert main(arguments) == 0
    assert "int8, first 8" in capsys.readouterr().out
    assert main(["evaluate", str(run), "--precision", "int8", "--task", "knn"]) == 2
    assert main(["evaluate", str(run), "--dims", "99"]) == 2
    assert "the first 99 entries of rows that have 16" in capsys.readouterr().err
