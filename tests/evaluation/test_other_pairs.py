"""Pairs of texts and of views: what belongs together, and what repeats."""

import io
import json

import numpy as np
import pytest
from PIL import Image

from contrastive.data.config import DataConfig
from contrastive.data.source_config import FieldsConfig
from contrastive.errors import DataError
from contrastive.evaluation.measured import Measured
from contrastive.evaluation.other_pairs import load_pairs
from contrastive.evaluation.retrieval import retrieval_metrics
from contrastive.evaluation.sets import check_held_out
from contrastive.evaluation.table import format_table


class Pixels:
    """A model whose embedding of a picture is its pixels, of a text the letters in it."""

    def encode_image(self, images):
        rows = np.asarray(images, np.float32).reshape(len(images), -1) + 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def encode_text(self, texts, *, role):
        rows = np.array([[t.count(chr(97 + i)) for i in range(26)] for t in texts], np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def noise(seed: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def views_of(folder, pictures):
    for split, contents in (("train", [noise(99)]), ("test", pictures)):
        (folder / split).mkdir()
        for i, content in enumerate(contents):
            (folder / split / f"{i}.png").write_bytes(content)
    config = DataConfig(source=str(folder / "{split}"), pairs="views", image_size=8)
    return next(one for one in load_pairs(config, most=100) if one.name == "test")


def test_equal_pictures_are_no_rivals(tmp_path):
    found = views_of(tmp_path, [noise(0), noise(1), noise(0), b"broken", noise(2)])
    np.testing.assert_array_equal(found.query_ids, [0, 1, 0, 2])
    got = found.measure(Pixels(), retrieval_metrics)
    assert got["image_to_image/recall@1"] == 1.0
    assert got["image_to_image/gallery"] == 4


class Collapsed(Pixels):
    """Gives every picture nearly the same row, as a run of views that found the easy way out."""

    def encode_image(self, images):
        rows = np.ones((len(images), 64), np.float32) + 1e-3 * super().encode_image(images)[:, :64]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_views_that_have_collapsed_raise_the_alarm(tmp_path):
    found = views_of(tmp_path, [noise(i) for i in range(60)])
    alive, dead = (found.measure(x, retrieval_metrics) for x in (Pixels(), Collapsed()))
    assert (alive["geometry/collapsed"], dead["geometry/collapsed"]) == (0, 1)
    assert alive["geometry/effective_rank_images"] > 10 > dead["geometry/effective_rank_images"]
    assert "Collapse: the embeddings of test" in format_table(Measured().add(dead, "test"))
    assert "Collapse" not in format_table(Measured().add(alive, "test"))
    assert dead.drawn["geometry/cosines_negative"].argmax() == 79  # all cosines are 1


def test_a_split_of_broken_pictures_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="none of the 2 pictures of the split 'test'"):
        views_of(tmp_path, [b"broken", b"also"])


def test_texts_that_repeat_count_once_and_belong_together(tmp_path):
    rows = [("ab", "aab"), ("cd", "ccd"), ("AB", "abb"), ("cd", "ccd"), ("xy", "")]
    for split in ("train", "test"):
        lines = [json.dumps({"query": q, "positive": p}) + "\n" for q, p in rows]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    fields = FieldsConfig(held_out_share=0.0)
    config = DataConfig(
        source=str(tmp_path / "{split}.jsonl"), pairs="texts", fields=fields, max_bad_share=0.5
    )
    test, train = load_pairs(config, most=100)
    assert (test.name, train.name) == ("test", "train")
    assert (test.queries, test.positives) == (["ab", "cd"], ["aab", "ccd", "abb"])
    np.testing.assert_array_equal(test.query_ids, [0, 1])
    np.testing.assert_array_equal(test.positive_ids, [0, 1, 0])
    got = test.measure(Pixels(), retrieval_metrics)
    assert got["query_to_positive/recall@1"] == got["positive_to_query/recall@1"] == 1.0
    table = format_table(Measured().add(got, "test"))
    assert "uniformity, images or queries" in table
    assert f"{got['geometry/uniformity_queries']:.2f}".replace("-", "−") in table


class Judge(Pixels):
    """Says of a pair how many letters its texts share, as a score or as one of three labels."""

    def __init__(self, labels):
        self.labels = labels

    def judge(self, queries, passages):
        shared = np.array([len(set(a) & set(b)) for a, b in zip(queries, passages, strict=True)])
        if not self.labels:
            return shared[:, None].astype(np.float32)
        return -np.abs(shared[:, None] - np.arange(3)[None]).astype(np.float32)


def texts_of(folder, rows, **options):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text(lines)
    source = str(folder / "{split}.jsonl")
    return load_pairs(DataConfig(source=source, pairs="texts", **options), most=100)[0]


def test_labels_are_told_beside_chance_and_the_commonest(tmp_path):
    rows = [("ab", "ab", "two"), ("ab", "bc", "one"), ("ab", "cd", "one"), ("x", "yz", "none")]
    rows = [{"query": q, "positive": p, "label": label} for q, p, label in rows]
    fields = FieldsConfig(labels=("none", "one", "two"), held_out_share=0.0)
    found = texts_of(tmp_path, rows, fields=fields)
    got = found.measure(Judge(fields.labels), None)
    assert got["classification/accuracy"] == 0.75
    assert got["classification/accuracy_chance"] == pytest.approx(1 / 3)
    assert got["classification/accuracy_majority"] == 0.5
    assert got["classification/recall_one"] == 0.5
    assert got.each["classification/accuracy"].tolist() == [1, 1, 0, 1]
    assert "labels" in format_table(Measured().add(got, "test"))


def test_scores_rank_a_passage_among_its_negatives(tmp_path):
    rows = [("abc", "abc", ["ab", "a"]), ("abc", "ax", ["ay", "abz"]), ("abc", "q", [])]
    rows = [{"query": q, "positive": p, "negatives": n} for q, p, n in rows]
    fields = FieldsConfig(held_out_share=0.0)
    found = texts_of(tmp_path, rows, fields=fields, negatives=1, joined=True)
    got = found.measure(Judge(()), None)  # scores 3 of 3, 2, 1, and 1 of 1, 1, 2
    assert got["relevance/queries"] == 2
    assert got["relevance/recall@1"] == 0.5
    assert got["relevance/mrr"] == pytest.approx((1 + (1 / 2 + 1 / 3) / 2) / 2)
    assert got["relevance/recall@1_chance"] == pytest.approx(1 / 3)
    rows = texts_of(tmp_path, rows, fields=fields, negatives=1)
    got = rows.measure(Pixels(), retrieval_metrics)
    assert got["triplets/pairs"] == 2
    assert got["triplets/accuracy"] == 0.75  # of the second, "ax" and "ay" are equally near


def test_what_is_wrong_with_a_split_says_of_which(tmp_path):
    rows = [{"query": f"q {i}", "positive": f"p {i}", "split": "train"} for i in range(4)]
    rows.append({"query": "q", "positive": " ", "split": "validation"})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(source=str(tmp_path / "a.jsonl"), pairs="texts")
    with pytest.raises(DataError, match=r"the split 'validation' of .*a\.jsonl: 1 of 1 samples"):
        load_pairs(config, most=10)


def held_out(folder, queries):
    """A set of texts whose held-out queries are these."""
    rows = [("train", f"question {i}") for i in range(4)] + [("test", query) for query in queries]
    lines = [{"query": q, "positive": "answer", "split": split} for split, q in rows]
    (folder / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = FieldsConfig(split="split")
    return DataConfig(source=str(folder / "b.jsonl"), pairs="texts", fields=fields)


def test_a_split_that_cannot_be_evaluated_is_told_before_training(tmp_path):
    check_held_out(held_out(tmp_path, ["one", " ", "two"]))
    with pytest.raises(DataError, match=r"the split 'test' of .*: 2 of 3 samples looked at"):
        check_held_out(held_out(tmp_path, ["one", " ", " "]))
