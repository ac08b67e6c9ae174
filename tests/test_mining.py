"""Hard negatives: what is taken of a ranking, and that the pair's own content never is."""

import dataclasses
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from contrastive import config as config_lib
from contrastive import mining
from contrastive.cli import main
from contrastive.commands.mine import JudgeConfig
from contrastive.commands.mine import mine as mine_command
from contrastive.data.config import DataConfig
from contrastive.data.examples import read_examples
from contrastive.data.numbered import read_examples_with_negatives, read_numbers
from contrastive.data.source_config import PartConfig
from contrastive.data.sources import open_source
from contrastive.errors import ConfigError, DataError, UserError
from contrastive.mining import Corpus, MiningConfig, mine
from contrastive.recipe import Recipe


def corpus_of(ids, positives=None):
    ids = np.array(ids, np.int32)
    positives = [f"p{i}" for i in range(len(ids))] if positives is None else positives
    return Corpus.of([f"q{i}" for i in range(len(ids))], positives, ids)


def scores_of(matrix):
    return lambda block: matrix[block.start : block.stop].astype(np.float32)


def test_the_hardest_come_first_and_the_own_content_never_does():
    corpus = corpus_of([0, 1, 0, 2])  # queries 0 and 2 are of equal content
    matrix = np.array([[9, 5, 8, 7], [1, 9, 3, 2], [8, 2, 9, 8.5], [9, 9.5, 9, 0]])
    found = list(mine(corpus, scores_of(matrix), MiningConfig(count=2)))
    assert found == [[3, 1], [2, 3], [3, 1], [1, 0]]


def test_a_passage_of_several_contents_is_no_negative_of_any():
    """Ids that a source gives may differ where the passages are the same."""
    corpus = corpus_of([0, 1, 1, 2], ["p", "p", "other", "third"])
    matrix = np.array([[9, 8, 7], [9, 8, 7], [9, 8, 7], [9, 8, 7]])
    found = list(mine(corpus, scores_of(matrix), MiningConfig(count=2)))
    assert found == [[1, 2], [2], [2], [0, 1]]
    assert (matrix == [9, 8, 7]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(0, 3), st.integers(0, 4),
    st.sampled_from([None, 0.5]), st.sampled_from([None, 0.75]), st.sampled_from([None, 0.3]),
)  # fmt: skip
def test_a_plain_computation_takes_the_same(seed, count, skip, more, margin, relative, max_score):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 5, 12)
    positives = [f"p{i}" for i in ids]  # a passage that repeats
    corpus = corpus_of(ids, positives)
    matrix = rng.choice(np.linspace(-1, 1, 9), (12, len(corpus.passages)))
    config = MiningConfig(
        count=count,
        skip=skip,
        window=skip + count + more,
        margin=margin,
        relative_margin=relative,
        max_score=max_score,
    )
    found = list(mine(corpus, scores_of(matrix), config))
    for i, taken in enumerate(found):
        others = [j for j in range(len(corpus.passages)) if corpus.passages[j] != positives[i]]
        ranked = sorted(others, key=lambda j: (-matrix[i, j], j))[skip : config.window]
        own = matrix[i, corpus.own[i]]
        fits = [
            j
            for j in ranked
            if (margin is None or matrix[i, j] <= own - margin)
            and (relative is None or matrix[i, j] <= own - relative * abs(own))
            and (max_score is None or matrix[i, j] <= max_score)
        ]
        assert taken == fits[:count]
        assert positives[i] not in [corpus.passages[j] for j in taken]


def test_rows_of_nan_rank_nothing():
    rows = np.ones((2, 4), np.float32)
    with pytest.raises(UserError, match="passage 1 is not finite"):
        mining.cosine(rows, np.array([[1] * 4, [np.nan] * 4], np.float32))


def test_blocks_do_not_change_what_is_found(monkeypatch):
    rng = np.random.default_rng(0)
    corpus, matrix = corpus_of(range(30)), rng.normal(size=(30, 30))
    whole = list(mine(corpus, scores_of(matrix), MiningConfig(count=3)))
    monkeypatch.setattr(mining, "BLOCK_ROWS", 7)
    assert list(mine(corpus, scores_of(matrix), MiningConfig(count=3))) == whole


@pytest.mark.parametrize("options", [{"count": 0}, {"skip": -1}, {"skip": 99, "count": 2}])
def test_settings_that_cannot_be(options):
    with pytest.raises(ConfigError, match="count has to be at least 1"):
        MiningConfig(**options)


@pytest.mark.parametrize("passages", [["the a", "of"], ["?!", "..."], ["猫 犬", "犬"]])
def test_bm25_of_passages_without_words_is_one_sentence(passages):
    with pytest.raises(UserError, match="BM25 finds no word in the passages"):
        mining.bm25(corpus_of([0, 1], passages))


ANIMALS = ("cat", "dog", "cow", "owl", "fox", "hen")


def recipe_of(tmp_path, rows, **data):
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = ConfigDict()
    config.name, config.total_steps = "mined", 1
    config.data = {"source": str(tmp_path / "pairs.jsonl"), "pairs": "texts", **data}
    config.data.fields = {"held_out_share": 0.0}
    config.loss = {"name": "info_nce"}
    return config_lib.resolve(Recipe, config, [])


def rows_of_animals():
    return [
        {
            "id": f"k{i}",
            "query": f"the red {a} or number",
            "positive": f"the {a} number {i // 2} is red",
        }
        for i, a in enumerate(ANIMALS)
    ]


def test_bm25_negatives_reach_the_batch_with_their_content_ids(tmp_path):
    pytest.importorskip("bm25s")
    rows = rows_of_animals()
    rows.append({"id": "k9", "query": "another question", "positive": rows[0]["positive"]})
    recipe = recipe_of(tmp_path, rows)
    said = io.StringIO()
    output = tmp_path / "negatives.jsonl"
    assert mine_command(recipe, output, MiningConfig(count=2), stream=said) == 0
    assert "among 6 passages by bm25" in said.getvalue()
    found = {e["key"]: e["negatives"] for e in map(json.loads, output.read_text().splitlines())}
    for row in rows:
        assert row["positive"] not in found.get(row["id"], [])
    mined = recipe_of(tmp_path, rows, negatives=2).data
    fields = config_lib.to_dict(mined.fields) | {"negatives_file": str(output)}
    config = config_lib.to_dict(mined) | {"fields": fields}
    config = config_lib.build(type(mined), config)
    examples = read_examples(open_source(config, "train"), config)
    ids = dict(zip(examples.captions, examples.ids.tolist(), strict=True))
    for negatives, numbers, own in zip(
        examples.negatives, examples.negative_ids, examples.ids, strict=True
    ):
        assert [ids[text] for text in negatives] == numbers
        assert own not in numbers


def test_numbers_of_samples_say_what_the_texts_say(tmp_path):
    pytest.importorskip("bm25s")
    rows = [{**row, "id": "same"} for row in rows_of_animals()]  # numbers need no keys
    rows.insert(2, {"id": "bad", "query": " ", "positive": "left out"})
    recipe = recipe_of(tmp_path, rows, max_bad_share=0.5)
    output, said = tmp_path / "negatives.npz", io.StringIO()
    assert mine_command(recipe, output, MiningConfig(count=2), stream=said) == 0
    keyed = [{**row, "id": f"k{i}"} for i, row in enumerate(rows)]
    texts = tmp_path / "negatives.jsonl"
    recipe = recipe_of(tmp_path, keyed, max_bad_share=0.5)
    mine_command(recipe, texts, MiningConfig(count=2), stream=said)
    by_key = {e["key"]: e["negatives"] for e in map(json.loads, texts.read_text().splitlines())}
    numbers = read_numbers(str(output))
    assert len(numbers) == len(rows)
    assert (numbers[2] == -1).all()
    assert by_key == {
        f"k{i}": [rows[j]["positive"] for j in row if j >= 0]
        for i, row in enumerate(numbers.tolist())
        if row[0] >= 0
    }
    mined = recipe_of(tmp_path, rows, negatives=2, max_bad_share=0.5).data
    fields = dataclasses.replace(mined.fields, negatives_index=str(output))
    config = dataclasses.replace(mined, fields=fields)
    found = read_examples_with_negatives(open_source(config, "train"), config)
    for i, negatives in zip(found.index.tolist(), found.negatives, strict=True):
        assert negatives == by_key.get(f"k{i}", [])
    swapped = [rows[1], rows[0], *rows[2:]]
    other = recipe_of(tmp_path, swapped, negatives=2, max_bad_share=0.5).data
    other = dataclasses.replace(other, fields=fields)
    with pytest.raises(DataError, match=r"mined from other pairs: sample 0 had another positive"):
        read_examples_with_negatives(open_source(other, "train"), other)


def test_keys_that_repeat_and_other_pairs_are_refused(tmp_path):
    rows = [{**row, "id": "same"} for row in rows_of_animals()]
    with pytest.raises(UserError, match="5 pairs whose key another pair has"):
        mine_command(recipe_of(tmp_path, rows), tmp_path / "out", MiningConfig())
    nameless = [{k: v for k, v in row.items() if k != "id"} for row in rows]
    with pytest.raises(UserError, match="have no keys, by which negatives are found"):
        mine_command(recipe_of(tmp_path, nameless), tmp_path / "out", MiningConfig())
    recipe = recipe_of(tmp_path, rows_of_animals())
    with pytest.raises(UserError, match=r"pairs\.jsonl/out cannot be written"):
        mine_command(recipe, tmp_path / "pairs.jsonl" / "out", MiningConfig())
    recipe = config_lib.resolve(Recipe, ConfigDict({"name": "c", "total_steps": 1}), [])
    with pytest.raises(UserError, match="mined for pairs of texts"):
        mine_command(recipe, tmp_path / "out", MiningConfig())
    recipe = recipe_of(tmp_path, rows_of_animals())
    parts = tuple(PartConfig(name=name, source=recipe.data.source) for name in "ab")
    data = DataConfig(source="mixture", pairs="texts", mixture=parts)
    with pytest.raises(UserError, match="parts of a mixture are numbered each for itself"):
        mine_command(dataclasses.replace(recipe, data=data), tmp_path / "x.npz", MiningConfig())


def test_a_judge_keeps_the_hardest_that_do_not_belong(monkeypatch):
    corpus = corpus_of(range(9))
    mined = [[(i + j) % 9 for j in range(1, i % 4 + 1)] for i in range(9)]
    asked = []

    def judge(queries, passages):
        asked.extend(zip(queries, passages, strict=True))
        return np.array([0.9 if int(text[1:]) % 2 else 0.1 for text in passages])

    monkeypatch.setattr(mining, "BLOCK_ROWS", 4)
    found = list(mining.without_false(corpus, iter(mined), judge, below=0.5, count=1))
    assert found == [[p for p in some if p % 2 == 0][:1] for some in mined]
    assert asked == [(f"q{i}", f"p{p}") for i, some in enumerate(mined) for p in some]


def test_what_judges_no_pairs_is_no_judge():
    with pytest.raises(ConfigError, match="--below = 0"):
        JudgeConfig(run="x", below=0.0)


def test_options_of_a_judge_need_one(capsys):
    for option in ("--below=0.3", "--candidates=5"):
        assert main(["mine", "--config=none.py", "--output=none.jsonl", option]) == 2
        assert "has no effect without --judge" in capsys.readouterr().err
