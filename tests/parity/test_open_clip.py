"""Our losses against open_clip's, on the same embeddings; needs `make parity`."""

import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contrastive.losses import clip_loss, sigmoid_loss

ROOT = pathlib.Path(__file__).parents[2]
PYTHON = ROOT / ".venv-parity" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no second environment: run `make parity`"),
]


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """Inputs, and open_clip's values and gradients for them."""
    folder = tmp_path_factory.mktemp("open_clip")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 96, 32))
    y = x + 0.7 * y
    given = {"x": x, "y": y}
    given = {k: (v / np.linalg.norm(v, axis=1, keepdims=True)) for k, v in given.items()}
    given |= {"scale": np.float64(14.0), "bias": np.float64(-10.0)}
    given = {k: v.astype(np.float32) for k, v in given.items()}
    np.savez(folder / "in.npz", **given)
    script = ROOT / "experiments" / "benchmarks" / "peer_open_clip.py"
    subprocess.run(
        [PYTHON, script, "--values", folder / "in.npz", folder / "out.npz"], check=True, timeout=300
    )
    return {k: jnp.asarray(v) for k, v in given.items()}, dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_value_and_gradients_equal_open_clips(peer, name):
    given, theirs = peer
    loss, names = {
        "softmax": (clip_loss, ("x", "y", "scale")),
        "sigmoid": (sigmoid_loss, ("x", "y", "scale", "bias")),
    }[name]
    step = jax.jit(jax.value_and_grad(loss, tuple(range(len(names)))))
    value, grads = step(*(given[n] for n in names))
    np.testing.assert_allclose(value, theirs[name], rtol=1e-6)
    for key, grad in zip(names, grads, strict=True):
        wanted = theirs[f"{name}/{key}"]
        error = np.linalg.norm(grad - wanted) / np.linalg.norm(wanted)
        assert error < 5e-6, (key, error)
