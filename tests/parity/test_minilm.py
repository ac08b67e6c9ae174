"""The one real checkpoint, all-MiniLM-L6-v2, against sentence-transformers on real sentences.

Needs `make parity` and

    python -m experiments.data.minilm; python -m experiments.data.similarity
    python -m experiments.data.wordnet
"""

import json
import pathlib
import subprocess

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

import contrastive
from contrastive.pretrained import mapping
from contrastive.pretrained.exporting import export_weights, parameters
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.source import open_source

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT / "data"
MODEL = DATA / "minilm"
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
PEER = ROOT / "experiments" / "benchmarks" / "peer_sentence.py"
SETS = {"simlex999": spearmanr, "wordsim353": spearmanr, "lee": pearsonr}
PUBLISHED = {"simlex999": 0.446, "wordsim353": 0.729, "lee": 0.656}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`"),
    pytest.mark.skipif(
        not all((DATA / name).is_dir() for name in ("minilm", "similarity", "wordnet")),
        reason="no data: run experiments.data.minilm, .similarity and .wordnet",
    ),
]


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def texts():
    """1,000 sentences of WordNet, and the texts of the three sets."""
    sentences = rows(DATA / "wordnet" / "examples.jsonl")
    found = [row["query"] for row in sentences[:: len(sentences) // 1000][:1000]]
    for name in SETS:
        for row in rows(DATA / "similarity" / f"{name}.jsonl"):
            found += [row["query"], row["positive"]]
    return list(dict.fromkeys(found))


@pytest.fixture(scope="module")
def ours(texts):
    return contrastive.load(MODEL, batch_size=64).encode_text(texts)


@pytest.fixture(scope="module")
def theirs(texts, tmp_path_factory):
    return encoded_there(MODEL, texts, tmp_path_factory.mktemp("minilm"))


def encoded_there(model, texts, folder):
    (folder / "texts.json").write_text(json.dumps(texts))
    command = [PYTHON, "-W", "ignore", PEER, "encode", model]
    subprocess.run([*command, folder / "texts.json", folder / "rows.npy"], check=True, timeout=900)
    return np.load(folder / "rows.npy")


def test_rows_of_real_sentences(texts, ours, theirs):
    """Odd lengths, from one word to news texts that are cut; 1e-5."""
    assert len(texts) > 2000
    np.testing.assert_allclose(np.linalg.norm(theirs, axis=1), 1.0, atol=1e-5)
    print(f"largest difference of {len(texts)} texts: {np.abs(ours - theirs).max():.2g}")
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("name", SETS)
def test_correlations_with_people_are_the_published_ones(name, texts, ours, theirs):
    place = {text: i for i, text in enumerate(texts)}
    pairs = rows(DATA / "similarity" / f"{name}.jsonl")
    found = []
    for vectors in (ours, theirs):
        a, b = ([vectors[place[row[key]]] for row in pairs] for key in ("query", "positive"))
        cosines = np.sum(np.array(a) * np.array(b), axis=1)
        found.append(SETS[name](cosines, [row["score"] for row in pairs]).statistic)
    print(f"{name}: {found[0]:.4f}, there {found[1]:.4f}")
    assert round(float(found[0]), 3) == round(float(found[1]), 3) == PUBLISHED[name]


def test_there_and_back_again(tmp_path, texts, theirs):
    """Every tensor to the last bit, and sentence-transformers reads the exported folder."""
    found = import_weights(MODEL)
    tensors = open_source(MODEL).tensors
    written = mapping.write(found.family.rules(found.settings), parameters(found.towers))
    assert set(tensors) - set(written) == set(found.ignored)
    for name, array in written.items():
        np.testing.assert_array_equal(array, tensors[name])
    out = tmp_path / "out"
    export_weights(found.settings, found.towers, found.tokenizer, "huggingface", out)
    again = encoded_there(out, texts[:200], tmp_path)
    np.testing.assert_allclose(again, theirs[:200], atol=1e-6)
