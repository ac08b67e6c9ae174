"""Our evaluations against CLIP_benchmark's, sentence-transformers' and trec_eval's, on the same
rows; needs `make parity`."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

from contrastive.evaluation.information_retrieval import information_retrieval_metrics
from contrastive.evaluation.relevance import Relevance
from contrastive.evaluation.retrieval import retrieval_metrics
from contrastive.evaluation.similarity import pair_classification_metrics, similarity_metrics
from contrastive.evaluation.zero_shot import ClassRows, classification_metrics

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
SCRIPT = ROOT / "experiments" / "benchmarks" / "peer_evaluation.py"
MINILM = ROOT / "data" / "minilm"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`"),
]


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def seeded() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = unit(rng.normal(size=(120, 48)))
    image_of_text = np.repeat(np.arange(120), 5)
    texts = unit(images[image_of_text] + 0.45 * rng.normal(size=(600, 48)))
    prompts = unit(rng.normal(size=(12, 1, 48)) + 0.5 * rng.normal(size=(12, 7, 48)))
    labels = rng.integers(12, size=300)
    pictures = unit(prompts.mean(axis=1)[labels] + 0.3 * rng.normal(size=(300, 48)))
    queries = unit(rng.normal(size=(60, 48)))
    corpus = unit(rng.normal(size=(400, 48)))
    pairs = [(i, j) for i in range(60) for j in rng.choice(400, rng.integers(1, 9), replace=False)]
    rows, items = np.array(pairs).T
    corpus[items] = unit(corpus[items] + 0.4 * queries[rows])
    gains = rng.integers(0, 4, size=len(rows))
    gains[np.unique(rows, return_index=True)[1]] = 2
    first = unit(rng.normal(size=(200, 48)))
    second = unit(first + rng.uniform(0, 0.5, size=(200, 1)) * rng.normal(size=(200, 48)))
    scores = np.round(5 * (first * second).sum(axis=1) + rng.normal(size=200)) / 2
    same = (scores > np.median(scores)).astype(np.int64)
    return {"images": images, "texts": texts, "image_of_text": image_of_text, "prompts": prompts,
            "labels": labels, "pictures": pictures, "queries": queries, "corpus": corpus,
            "rows": rows, "items": items, "gains": gains, "first": first, "second": second,
            "scores": scores, "same": same}  # fmt: skip


def ask(folder: pathlib.Path, data: dict[str, np.ndarray]) -> dict:
    np.savez(folder / "in.npz", **data)
    command = [PYTHON, "-W", "ignore", SCRIPT, "--values", folder / "in.npz", folder / "out.json"]
    subprocess.run(command, check=True, timeout=300)
    return json.loads((folder / "out.json").read_text())


@pytest.fixture(scope="module")
def given() -> dict[str, np.ndarray]:
    return seeded()


@pytest.fixture(scope="module")
def peers(given, tmp_path_factory) -> dict:
    return ask(tmp_path_factory.mktemp("peers"), given)


def close(ours, theirs) -> bool:
    return ours == pytest.approx(theirs, abs=1e-6)


def test_clip_benchmarks_retrieval(given, peers):
    ids = np.arange(120)
    ways = {
        "image_retrieval": (given["texts"], given["images"], given["image_of_text"], ids),
        "text_retrieval": (given["images"], given["texts"], ids, given["image_of_text"]),
    }
    for name, (queries, gallery, own, other) in ways.items():
        got = retrieval_metrics(queries, gallery, own, other)
        assert 0.1 < got["recall@1"] < 0.99
        for k in (1, 5, 10):
            assert close(got[f"recall@{k}"], peers["clip_benchmark"][f"{name}_recall@{k}"])


def test_clip_benchmarks_zero_shot(given, peers):
    classes, count = given["prompts"].shape[:2]

    def encode(texts):
        return np.stack([given["prompts"][tuple(map(int, text.split()))] for text in texts])

    templates = tuple(f"{{}} {t}" for t in range(count))
    labels, rows = ClassRows(encode)([str(c) for c in range(classes)], templates)
    np.testing.assert_allclose(rows, peers["zero_shot"]["weights"], atol=1e-6)
    got = classification_metrics(given["pictures"], given["labels"].astype(np.int32), labels, rows)
    assert 0.3 < got["top1"] < 0.99
    for name in ("top1", "top5", "mean_per_class"):
        assert close(got[name], peers["zero_shot"][name]), name


OURS_TO_SENTENCE = {
    "ndcg@10": "ndcg@10",
    "mrr@10": "mrr@10",
    "map@100": "map@100",
    "recall@1": "recall@1",
    "recall@10": "recall@10",
    "recall@100": "recall@100",
    "precision@10": "precision@10",
    "success@1": "accuracy@1",
    "success@10": "accuracy@10",
}
OURS_TO_TREC = {
    "ndcg@10": "ndcg_cut_10",
    "map": "map",
    "map@100": "map_cut_100",
    "recall@1": "recall_1",
    "recall@10": "recall_10",
    "recall@100": "recall_100",
    "precision@10": "P_10",
    "success@1": "success_1",
    "success@10": "success_10",
}


def relevance(data: dict[str, np.ndarray], *, graded: bool) -> Relevance:
    keep = data["gains"] > 0
    gains = data["gains"][keep].astype(float) if graded else None
    count = len(data["queries"])
    return Relevance.from_pairs(data["rows"][keep], data["items"][keep], gains, queries=count)


def test_sentence_transformers_information_retrieval(given, peers):
    """Its nDCG knows no grades."""
    got = information_retrieval_metrics(
        given["queries"], given["corpus"], relevance(given, graded=False)
    )
    assert 0.1 < got["ndcg@10"] < 0.9
    for ours, theirs in OURS_TO_SENTENCE.items():
        assert close(got[ours], peers["sentence"][f"cosine_{theirs}"]), ours


def test_trec_evals_measures_with_grades(given, peers):
    got = information_retrieval_metrics(
        given["queries"], given["corpus"], relevance(given, graded=True)
    )
    for ours, theirs in OURS_TO_TREC.items():
        assert close(got[ours], peers["trec"][theirs]), ours


def test_sentence_transformers_similarity_and_pairs(given, peers):
    got = similarity_metrics(given["first"], given["second"], given["scores"])
    assert close(got["spearman"], peers["similarity"]["spearman_cosine"])
    assert close(got["pearson"], peers["similarity"]["pearson_cosine"])
    got = pair_classification_metrics(given["first"], given["second"], given["same"])
    for ours, theirs in (
        ("average_precision", "ap"),
        ("f1", "f1"),
        ("precision", "precision"),
        ("recall", "recall"),
        ("accuracy", "accuracy"),
        ("accuracy_threshold", "accuracy_threshold"),
        ("f1_threshold", "f1_threshold"),
    ):
        assert close(got[ours], peers["binary"][f"cosine_{theirs}"]), ours


def test_ties_are_where_the_definitions_differ(given, tmp_path):
    """A collapsed model, all scores equal. trec_eval ranks by the items' names, the last first;
    sentence-transformers the first first; CLIP_benchmark takes whichever top-k gives. Ours is the
    mean over all orders: what chance gives."""
    flat = {name: np.ones_like(given[name]) / np.float32(48**0.5)
            for name in ("images", "texts", "queries", "corpus")}  # fmt: skip
    data = given | flat
    peers = ask(tmp_path, data)
    ours = information_retrieval_metrics(
        data["queries"], data["corpus"], relevance(data, graded=True)
    )
    ids = np.arange(120)
    recall = retrieval_metrics(data["texts"], data["images"], data["image_of_text"], ids)
    chance = {"recall@10": 10 / 400, "retrieval": 10 / 120}
    assert ours["recall@10"] == pytest.approx(chance["recall@10"])
    assert recall["recall@10"] == pytest.approx(chance["retrieval"])
    found = {
        "ours": ours["recall@10"],
        "trec_eval": peers["trec"]["recall_10"],
        "sentence-transformers": peers["sentence"]["cosine_recall@10"],
        "clip_benchmark": peers["clip_benchmark"]["image_retrieval_recall@10"],
    }
    print(found)  # in docs/evaluation.md
    assert found["trec_eval"] != pytest.approx(ours["recall@10"], abs=1e-3)
    assert found["sentence-transformers"] != pytest.approx(ours["recall@10"], abs=1e-3)


@pytest.mark.skipif(not MINILM.is_dir(), reason="no data/minilm")
def test_real_embeddings(given, tmp_path):
    """all-MiniLM-L6-v2's rows of class names, of prompts with them, and of both reversed."""
    from contrastive.evaluation.class_sets import class_set, shipped_templates

    names = list(dict.fromkeys(class_set("imagenet").names))[:400]
    prompts = shipped_templates()["imagenet_simple"]
    texts = [*names, *(p.format(name) for name in names[:60] for p in prompts[:5])]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    command = [PYTHON, "-W", "ignore", SCRIPT, "--texts", MINILM, tmp_path / "texts.json",
               tmp_path / "rows.npy"]  # fmt: skip
    subprocess.run(command, check=True, timeout=300)
    rows = np.load(tmp_path / "rows.npy").astype(np.float32)
    corpus, queries = rows[:400], rows[400:]
    wanted = np.repeat(np.arange(60), 5)
    data = given | {"queries": queries, "corpus": corpus, "rows": np.arange(300), "items": wanted,
                    "gains": np.ones(300, np.int64), "images": corpus[:60], "texts": queries,
                    "image_of_text": wanted, "first": queries, "second": corpus[wanted],
                    "scores": np.arange(300) % 5, "same": np.arange(300) % 2}  # fmt: skip
    peers = ask(tmp_path, data)
    got = information_retrieval_metrics(queries, corpus, relevance(data, graded=False))
    assert got["mrr@10"] > 0.5
    for ours, theirs in OURS_TO_SENTENCE.items():
        assert close(got[ours], peers["sentence"][f"cosine_{theirs}"]), ours
    for ours, theirs in OURS_TO_TREC.items():
        assert close(got[ours], peers["trec"][theirs]), ours
    got = retrieval_metrics(queries, corpus[:60], wanted, np.arange(60))
    for k in (1, 5, 10):
        assert close(got[f"recall@{k}"], peers["clip_benchmark"][f"image_retrieval_recall@{k}"])
    got = similarity_metrics(queries, corpus[wanted], (np.arange(300) % 5).astype(float))
    assert close(got["spearman"], peers["similarity"]["spearman_cosine"])
