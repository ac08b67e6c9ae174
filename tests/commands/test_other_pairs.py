"""The main job on pairs of texts and of views, with and without a momentum encoder: the same files,
the same resume, the same use afterwards."""

import io
import json

import jax
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from contrastive import config as config_lib
from contrastive.commands.best import evaluation_names
from contrastive.commands.embed import embed
from contrastive.commands.mine import JudgeConfig, mine
from contrastive.commands.search import search
from contrastive.commands.train import train
from contrastive.data.pipeline import BatchLoader
from contrastive.data.sources import open_source
from contrastive.errors import UserError
from contrastive.loading import load, open_model
from contrastive.mesh import MeshConfig, make_mesh
from contrastive.mined import MinedBatches, Miner
from contrastive.mining import MiningConfig
from contrastive.recipe import Recipe


def run(config, workdir, *overrides, devices=1):
    recipe = config_lib.resolve(Recipe, config, [f"--config.{o}" for o in overrides])
    options = {"new": False, "devices": jax.devices()[:devices], "stream": io.StringIO()}
    assert train(recipe, workdir, **options) == 0


def losses(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def results(workdir):
    return json.loads((workdir / "evaluation.json").read_text())


@pytest.fixture
def texts(tiny, tmp_path):
    """Questions whose answers share a word with them, and wrong answers."""
    with open(tmp_path / "pairs.jsonl", "w") as file:
        for i in range(60):
            row = {"id": f"q{i}", "question": f"what is w{i}", "positive": f"w{i} is it {i % 7}"}
            row["negatives"] = [f"w{i} is not {j}" for j in range(i % 3)]
            file.write(json.dumps(row) + "\n")
    tiny.data = {
        "source": str(tmp_path / "pairs.jsonl"),
        "pairs": "texts",
        "text_length": 8,
        "tokenizer": {"kind": "words"},
        "negatives": 2,
        "query_prefix": "query: ",
        "passage_prefix": "passage: ",
    }
    bag = {"kind": "bag", "width": 16, "hidden": 8, "dropout": 0.1, "bigrams": 32}
    tiny.model = {"embedding_dim": 16, "shared": False, "text": bag}
    tiny.loss = {"name": "info_nce"}
    return tiny


@pytest.fixture
def views(tiny):
    del tiny.model.text
    tiny.data.pairs = "views"
    del tiny.data.text_length, tiny.data.tokenizer
    tiny.model.head = {"layers": 2, "output": 8, "norm": "batch"}
    tiny.loss = {"name": "nt_xent"}
    return tiny


def test_a_run_on_pairs_of_texts_and_its_use(texts, tmp_path):
    texts.data.query_length = 7
    texts.eval = {"every": 4, "baselines": True}
    run(texts, tmp_path / "run", "optimizer.learning_rate=0.03", "total_steps=24")
    found = results(tmp_path / "run")
    name = "validation/query_to_positive/recall@1"
    assert found[f"{name}_chance"] < 0.5
    assert 0 <= found[f"{name}_random_init"] <= 1
    assert found["train/geometry/alignment"] < found["train/geometry/alignment_random_init"]
    assert {"train/positive_to_query/recall@1", "train/geometry/uniformity_queries"} <= set(found)
    model = load(tmp_path / "run")
    query, passage = (model.encode_text("w3 is it 3", role=r) for r in ("query", "passage"))
    assert np.abs(query - passage).max() > 1e-3  # two towers, two prefixes
    cut, longer = model.encode_text(["what is w3 it", "what is w3 it of"])  # 5 words are read
    np.testing.assert_array_equal(cut, longer)
    with pytest.raises(UserError, match="no image tower"):
        model.encode_image(np.zeros((1, 8, 8, 3), np.uint8))
    (tmp_path / "lines.txt").write_text("what is w3\nw3 is it 3\n")
    quiet = Console(file=io.StringIO())
    for role, row in (("query", query), ("passage", passage)):
        out = tmp_path / f"{role}.npz"
        embed(tmp_path / "run", tmp_path / "lines.txt", out, role=role, console=quiet)
        np.testing.assert_allclose(np.load(out)["embeddings"][1], row[0], atol=1e-6)
    found = search(tmp_path / "run", "what is w3", top=4, console=quiet)
    best = model.encode_text("what is w3") @ model.encode_text(found[0].name, role="passage").T
    assert found[0].score == pytest.approx(best.item(), abs=1e-5)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert all(" is it " in hit.name and hit.key for hit in found)
    with pytest.raises(UserError, match="no image tower"):
        search(tmp_path / "run", "w3", images=tmp_path, console=quiet)
    file = tmp_path / "negatives.jsonl"
    config = MiningConfig(count=2, window=5)
    mine(config_lib.resolve(Recipe, texts, []), file, config, by=str(tmp_path / "run"))
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
    rows = {row["id"]: row for row in map(json.loads, lines)}
    mined = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(mined) == len(open_source(config_lib.resolve(Recipe, texts, []).data, "train"))
    for entry in mined:
        assert len(entry["negatives"]) == 2
        assert rows[entry["key"]]["positive"] not in entry["negatives"]
    row = mined[0]
    own = model.encode_text(rows[row["key"]]["question"])
    scores = (own @ model.encode_text(row["negatives"], role="passage").T)[0]
    assert scores[0] >= scores[1]


@pytest.mark.slow
def test_texts_resume_bit_for_bit_and_on_eight_devices(texts, tmp_path):
    run(texts, tmp_path / "whole")
    run(texts, tmp_path / "parts", "stop_at=3")
    run(texts, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    run(texts, tmp_path / "eight", "train.microbatches=2", devices=8)
    np.testing.assert_allclose(losses(tmp_path / "eight"), losses(tmp_path / "whole"), rtol=1e-5)


def test_a_run_on_views_and_its_use(views, tmp_path):
    views.eval = {"every": 4, "baselines": True}
    run(views, tmp_path / "run")
    found = results(tmp_path / "run")
    for kind in ("", "_chance", "_random_init", "_raw_pixels"):
        assert 0 <= found[f"validation/image_to_image/recall@1{kind}"] <= 1
    model = load(tmp_path / "run")
    assert model.encode_image(np.zeros((2, 16, 16, 3), np.uint8)).shape == (2, 16)  # no head
    with pytest.raises(UserError, match="no text tower"):
        model.encode_text("a red circle")


@pytest.mark.parametrize("version", ["queue", pytest.param("symmetric", marks=pytest.mark.slow)])
def test_a_momentum_encoder_is_a_part_of_the_checkpoint(views, tmp_path, version):
    views.loss = {"name": "info_nce"}
    if version == "queue":
        views.momentum = {"decay": 0.9, "queue": 32}
    else:
        views.momentum = {"decay": 0.9, "schedule": "cosine", "symmetric": True}
        views.model.predictor = {"layers": 2, "norm": "batch"}
    run(views, tmp_path / "whole")
    run(views, tmp_path / "parts", "stop_at=3")
    run(views, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    if version == "queue":
        run(views, tmp_path / "moved", "stop_at=3")
        run(views, tmp_path / "moved", "mesh.fsdp=2", devices=8)
        moved, whole = losses(tmp_path / "moved"), losses(tmp_path / "whole")
        np.testing.assert_allclose(moved, whole, rtol=1e-4)


def test_what_is_measured_of_judged_pairs_is_known_without_a_model(texts, tmp_path):
    """So that ``checkpoint.best`` may name it."""
    texts.data.update({"joined": True, "query_prefix": "", "passage_prefix": ""})
    tower = {"kind": "transformer", "width": 32, "heads": 2, "depth": 1}
    texts.model, texts.loss = {"embedding_dim": 16, "text": tower}, {"name": "relevance"}
    recipe = config_lib.resolve(Recipe, texts, [])
    assert "evaluation/train/relevance/mrr" in evaluation_names(recipe, None, jax.devices()[:1])
    with open(tmp_path / "labelled.jsonl", "w") as file:
        for i in range(60):
            row = {"id": f"q{i}", "query": f"w{i}", "positive": f"w{i}", "label": "abc"[i % 3]}
            file.write(json.dumps(row) + "\n")
    texts.data.update({"source": str(tmp_path / "labelled.jsonl"), "negatives": 0})
    texts.data.fields, texts.loss = {"labels": ("a", "b", "c")}, {"name": "classifier"}
    recipe = config_lib.resolve(Recipe, texts, [])
    names = evaluation_names(recipe, None, jax.devices()[:1])
    assert {f"evaluation/train/classification/{n}" for n in ("accuracy", "recall_c")} < {*names}


@pytest.mark.slow
def test_labelled_pairs_are_learned_and_told(texts, tmp_path):
    """By both texts' rows, and by one encoder that reads both."""
    with open(tmp_path / "labelled.jsonl", "w") as file:
        for i in range(80):
            word = ("is", "not")[i % 2]
            row = {"id": f"q{i}", "query": f"w{i % 9} so", "positive": f"w{i % 7} {word}"}
            file.write(json.dumps({**row, "label": ("yes", "no")[i % 2]}) + "\n")
    fields = {"labels": ("yes", "no")}
    texts.data = {"source": str(tmp_path / "labelled.jsonl"), "pairs": "texts", "text_length": 12}
    texts.data.update({"tokenizer": {"kind": "words"}, "fields": fields})
    texts.model.shared, texts.loss = True, {"name": "classifier"}
    long = ("optimizer.learning_rate=0.05", "total_steps=24", "eval.baselines=true")
    for joined in ("false", "true"):
        run(texts, tmp_path / joined, f"data.joined={joined}", *long)
        found = results(tmp_path / joined)
        assert found["train/classification/accuracy"] > 0.9
        assert found["train/classification/accuracy_chance"] == 0.5
        assert "train/classification/accuracy_random_init" in found
        model = load(tmp_path / joined)
        said = model.judge(["w3 so", "w3 so"], ["w1 is", "w1 not"])
        assert said.argmax(axis=1).tolist() == [0, 1]


@pytest.mark.slow
def test_a_cross_encoder_throws_false_negatives_out(texts, tmp_path):
    """Answers to other questions that would answer this one too."""
    pytest.importorskip("bm25s")
    kinds, rows = ("cat", "dog", "owl"), []
    for i in range(60):
        kind = kinds[i % 3]
        row = {"id": f"q{i}", "query": f"says {kind}", "positive": f"says {kind} {i}"}
        rows.append(
            row | {"negatives": [f"says {k} {j}" for k in kinds for j in (1, 2) if k != kind]}
        )
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts.data.source, texts.data.fields = str(tmp_path / "asked.jsonl"), {"held_out_share": 0.0}
    texts.data.update({"joined": True, "text_length": 12, "query_prefix": "", "passage_prefix": ""})
    texts.data.negatives = 2
    bag = {"kind": "transformer", "width": 32, "heads": 2, "depth": 1}
    texts.model = {"embedding_dim": 16, "text": bag}
    texts.loss = {"name": "relevance"}
    run(texts, tmp_path / "judge", "total_steps=200", "optimizer.learning_rate=0.01")
    assert results(tmp_path / "judge")["train/relevance/recall@1"] > 0.9
    del texts.data.joined, texts.data.negatives
    texts.loss = {"name": "info_nce"}
    recipe = config_lib.resolve(Recipe, texts, [])
    file, config = tmp_path / "negatives.jsonl", MiningConfig(count=3, window=60)
    judge = JudgeConfig(run=str(tmp_path / "judge"), candidates=50)
    assert mine(recipe, file, config, by="bm25", judge=judge, stream=io.StringIO()) == 0
    of = {row["id"]: row["query"].split()[1] for row in rows}
    mined = [json.loads(line) for line in file.read_text().splitlines()]
    taken = [(of[entry["key"]], text.split()[1]) for entry in mined for text in entry["negatives"]]
    assert sum(kind == other for kind, other in taken) < 0.1 * len(taken)


@pytest.mark.slow
def test_negatives_that_the_model_mines_are_a_part_of_the_checkpoint(texts, tmp_path):
    """Stopped before lists come into force, at a refresh and after it; on other devices too."""
    texts.data.mined = {"every": 2, "candidates": 3, "window": 6}
    del texts.data.negatives
    texts.data.negatives, texts.total_steps = 2, 9
    run(texts, tmp_path / "whole")
    for stop in (3, 4, 7):
        run(texts, tmp_path / "parts", f"stop_at={stop}")
    run(texts, tmp_path / "parts")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    run(texts, tmp_path / "given", "data.mined.every=0", "data.mined.candidates=20",
        "data.mined.window=100")  # fmt: skip
    given, whole = losses(tmp_path / "given"), losses(tmp_path / "whole")
    assert given[:4] == whole[:4]  # the copy of step 2 comes into force at step 4
    assert all(a != b for a, b in zip(given[4:], whole[4:], strict=True))
    run(texts, tmp_path / "eight", devices=8)
    np.testing.assert_allclose(losses(tmp_path / "eight"), whole, rtol=1e-4)


def test_mined_negatives_are_those_that_the_copy_ranks_high(texts, tmp_path):
    """What a finished run's model ranks, the batches of a Miner with that model hold."""
    texts.data.negatives = 2
    run(texts, tmp_path / "run")
    texts.data.mined = {"every": 2, "candidates": 2, "window": 5}
    recipe = config_lib.resolve(Recipe, texts, [])
    opened = open_model(tmp_path / "run", devices=jax.local_devices()[:1])
    source = open_source(recipe.data, "train")
    loader = BatchLoader(source, recipe.data, opened.tokenizer, batch_size=16, seed=recipe.seed)
    batches = MinedBatches(loader, recipe, opened.tokenizer, part=0, parts=1)
    graphdef, parameters = nnx.split(opened.towers)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    options = {"beside": False, "say": lambda text: None, "mesh": mesh}
    miner = Miner(recipe, batches, graphdef, opened.tokenizer, jax.devices()[:1], **options)
    lists = miner._rank(parameters)
    model = load(tmp_path / "run")
    examples, passages = loader.examples, batches.corpus.passages
    scores = model.encode_text(examples.queries) @ model.encode_text(passages, role="passage").T
    for row, (own, found) in enumerate(zip(batches.corpus.own, lists, strict=True)):
        wrong = [i for i in np.argsort(-scores[row], kind="stable") if i != own]
        assert found.tolist() == wrong[:2]
    batches.lists = lists
    batch = next(batches)
    loader.close()
    place = {int(index): row for row, index in enumerate(examples.index)}
    ids = dict(zip(examples.captions, examples.ids.tolist(), strict=True))
    for i, example in enumerate(batch["example"].tolist()):
        texts_of = [passages[j] for j in lists[place[example]]]
        assert batch["negative_id"][i].tolist() == [ids[text] for text in texts_of]
        wanted = opened.tokenizer.encode(["passage: " + text for text in texts_of])
        np.testing.assert_array_equal(batch["negatives"][i], wanted)
    assert (batch["negative_weight"] == 1).all()
