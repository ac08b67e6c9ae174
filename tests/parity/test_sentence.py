"""Text encoders against sentence-transformers and transformers, from the folders that those write.

Three tiny models are committed, with ids, rows and gradients as those libraries compute them
(`experiments/benchmarks/peer_sentence.py make`); more are made anew in the slow tests, which need
`make parity`.
"""

import json
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import contrastive
from contrastive.geometry import normalize
from contrastive.pretrained import mapping
from contrastive.pretrained.exporting import export_weights
from contrastive.pretrained.importing import import_weights
from contrastive.pretrained.source import open_source
from contrastive.towers import text

ROOT = pathlib.Path(__file__).parents[2]
FIXTURES = pathlib.Path(__file__).parent / "fixtures"
PYTHON = ROOT / ".venv-parity" / "bin" / "python"
PEER = ROOT / "experiments" / "benchmarks" / "peer_sentence.py"
KINDS = ("bert", "roberta", "modernbert")
TEXTS = (
    "A small bird sits on a wire.",
    "Two people play chess in the park while it rains on the old stone tables.",
    "rain",
    "The ferry leaves at noon; nobody knows where it goes.",
    "",
)


def flat(state):
    return {"/".join(map(str, p)): leaf for p, leaf in nnx.to_flat_state(state)}


def gradients(found, ids, pull):
    """Ours, of the same sum over the rows."""
    graphdef, state = nnx.split(found.towers)

    def total(state):
        rows = normalize(nnx.merge(graphdef, state).encode_text(ids))
        return jnp.sum(jnp.sin(rows) * pull)

    return flat(jax.jit(jax.grad(total))(state))


def check(folder):
    """Ids, rows to 1e-5 and every gradient to 1e-4 of its norm."""
    wanted = dict(np.load(folder / "expected.npz"))
    found = import_weights(folder)
    ids = found.tokenizer.encode(TEXTS)
    length = wanted["ids"].shape[1]
    np.testing.assert_array_equal(ids[:, :length], wanted["ids"])
    assert (ids[:, length:] == found.tokenizer.pad_id).all()
    mask = text.text_mask(jnp.asarray(ids), found.towers.text.pad_id, None)
    np.testing.assert_array_equal(mask[:, :length], wanted["mask"].astype(bool))

    rows = contrastive.load(folder, batch_size=2).encode_text(TEXTS)
    np.testing.assert_allclose(rows, wanted["rows"], atol=1e-5)
    np.testing.assert_allclose(rows, wanted["encoded"], atol=1e-5)

    ours = gradients(found, jnp.asarray(wanted["ids"], jnp.int32), jnp.asarray(wanted["pull"]))
    tensors = open_source(folder).tensors
    theirs = {n.removeprefix("gradient/"): g for n, g in wanted.items() if "gradient/" in n}
    largest = max(np.linalg.norm(g) for g in theirs.values())
    for name, gradient in mapping.write(found.family.rules(found.settings), ours).items():
        # The bias of keys moves all scores of a query alike: its gradient is rounding only.
        size = max(np.linalg.norm(theirs[name]), 1e-3 * largest)
        error = np.linalg.norm(gradient - theirs[name]) / size
        assert error <= 1e-4, (name, error)
        assert gradient.shape == tensors.get(name, gradient).shape
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_committed_models_give_the_same_ids_rows_and_gradients(kind):
    check(FIXTURES / kind)


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_again_is_the_same_to_the_last_bit(kind):
    found = import_weights(FIXTURES / kind)
    parameters = {n: np.asarray(leaf[...]) for n, leaf in flat(nnx.state(found.towers)).items()}
    rules = found.family.rules(found.settings)
    written = mapping.write(rules, parameters)
    tensors = found.family.tensors(open_source(FIXTURES / kind))
    assert set(tensors) - set(written) == set(found.ignored)
    for name, array in written.items():
        assert array.dtype == tensors[name].dtype
        np.testing.assert_array_equal(array, tensors[name])


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_folder_is_the_same_model(kind, tmp_path):
    """The same family, tensors to the last bit, texts read alike."""
    found = import_weights(FIXTURES / kind)
    out = tmp_path / "out"
    family = export_weights(found.settings, found.towers, found.tokenizer, "huggingface", out)
    assert family.name == kind
    again = import_weights(out)
    np.testing.assert_array_equal(again.tokenizer.encode(TEXTS), found.tokenizer.encode(TEXTS))
    assert again.tokenizer.length == found.tokenizer.length
    before, after = (flat(nnx.state(model.towers)) for model in (found, again))
    assert set(before) == set(after)
    for name, leaf in before.items():
        np.testing.assert_array_equal(leaf[...], after[name][...])


# --- With the second environment


def peer(*words):
    subprocess.run([PYTHON, "-W", "ignore", PEER, *map(str, words)], check=True, timeout=600)


@pytest.mark.parametrize(
    "kind, options",
    [
        ("bert", ["--pooling=max", "--width=24", "--heads=3", "--depth=2", "--hidden=40"]),
        ("bert", ["--pooling=weightedmean", "--width=64", "--heads=4", "--depth=6"]),
        ("bert", ["--pooling=lasttoken", "--dense=16"]),
        ("roberta", ["--pooling=mean", "--width=24", "--heads=3", "--hidden=40"]),
        ("roberta", ["--pooling=lasttoken", "--width=64", "--heads=8", "--depth=5"]),
        ("modernbert", ["--pooling=mean", "--width=24", "--heads=3", "--depth=5"]),
        ("modernbert", ["--pooling=cls", "--width=64", "--heads=4", "--depth=7", "--dense=10"]),
    ],
)
@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`")
def test_models_of_many_sizes(kind, options, tmp_path):
    peer("make", kind, 7, tmp_path / kind, *options)
    check(tmp_path / kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`")
def test_sentence_transformers_reads_what_is_exported(kind, tmp_path):
    found = import_weights(FIXTURES / kind)
    out = tmp_path / "out"
    export_weights(found.settings, found.towers, found.tokenizer, "huggingface", out)
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    peer("encode", out, tmp_path / "texts.json", tmp_path / "rows.npy")
    wanted = np.load(FIXTURES / kind / "expected.npz")["encoded"]
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), wanted, atol=1e-6)
