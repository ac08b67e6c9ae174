"""What a temperature does to a trained model: spread, tolerance, and who gets pushed."""

import pathlib
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

import contrastive
from contrastive.data.emoji import load_concepts
from contrastive.evaluation.sets import load_sets
from contrastive.geometry import alignment, hardness_weights, uniformity
from contrastive.recipe import read_recipe
from experiments.temperature.sweep import TAUS

HARDEST = 0.01  # of the negatives
_SET = "unseen_artist"


def measure(workdir: pathlib.Path) -> Mapping[str, float]:
    """Of the pictures of an artist who was not trained on, and their names; ``hardest`` at the
    model's own temperature, ``hardest/TAU`` for the same rows at others."""
    recipe, model = read_recipe(workdir), contrastive.load(workdir)
    (pictures,) = load_sets(recipe.data, most=20_000, only=[_SET])
    images = model.encode_image(pictures.images)
    texts = model.encode_text(list(pictures.texts))
    order = {int(identity): i for i, identity in enumerate(pictures.text_ids)}
    own = texts[[order[int(identity)] for identity in pictures.ids]]
    return {
        "alignment": float(alignment(images, own)),
        "uniformity": float(uniformity(images) + uniformity(own)) / 2,
        "tolerance": tolerance(images, pictures.ids),
        "hardest": hardest_share(images, own, model.scale, model.bias),
        "scale": model.scale,
        **{f"hardest/{tau}": hardest_share(images, own, 1.0 / tau, None) for tau in TAUS["full"]},
    }


def tolerance(images: np.ndarray, ids: np.ndarray) -> float:
    """How much nearer pictures of variants of one emoji lie (other ids, the same base: a cook who
    is a man, and one who is a woman) than any two pictures: the difference of the mean cosines."""
    bases = np.array([concept.base for concept in load_concepts()])[ids]
    cosines = images @ images.T
    same = bases[:, None] == bases[None]
    other = ~np.eye(len(images), dtype=bool)
    return float(cosines[same & other].mean() - cosines[~same].mean())


def hardest_share(images: np.ndarray, texts: np.ndarray, scale: float, bias: float | None) -> float:
    """Of the gradient weight on each picture's negatives, the share of the hardest 1 %: of
    ``A_ij`` with a softmax, of ``sigmoid(s_ij + b)`` with a sigmoid loss."""
    count = max(1, round(HARDEST * (len(images) - 1)))
    if bias is None:
        found = hardness_weights(images, texts, jnp.float32(scale), count)
        total = np.maximum(np.asarray(found.total, np.float64), 1e-30)
        return float((np.asarray(found.hardest, np.float64).sum(1) / total).mean())
    logits = (scale * images @ texts.T + bias).astype(np.float64)
    pushes = np.exp(-np.logaddexp(0, -logits))
    np.fill_diagonal(pushes, 0)
    top = np.sort(pushes, axis=1)[:, -count:].sum(1)
    return float((top / np.maximum(pushes.sum(1), 1e-30)).mean())
