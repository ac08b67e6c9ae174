"""What the gradient of InfoNCE is made of: observed minus expected, and who gets pushed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from contrastive.geometry import hardness_weights, normalize
from contrastive.losses import clip_loss, info_nce
from experiments.common.outcome import Check, Outcome, Plot, Table, curve, number
from experiments.common.runner import Context

COSINES = np.array([[0.8, 0.2], [0.4, 0.6]])  # the document's hand example
TAU = 0.5
BATCH, DIM, SHARE = 512, 64, 0.6  # pairs: caption = SHARE · image + noise
TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
HARDEST = 0.01  # of the negatives


def hand_rows() -> tuple[np.ndarray, np.ndarray]:
    """Unit rows with the cosines of the hand example: queries are axes."""
    queries = np.eye(2, 4)
    keys = np.zeros((2, 4))
    keys[:, :2] = COSINES.T
    for j in range(2):
        keys[j, 2 + j] = np.sqrt(1 - (COSINES[:, j] ** 2).sum())
    return queries.astype(np.float32), keys.astype(np.float32)


def hand_checks() -> list[Check]:
    """F1: losses and gradients, by the library's autodiff."""
    q, p = (jnp.asarray(x) for x in hand_rows())
    scale = jnp.float32(1 / TAU)

    def one_way(q: jax.Array, p: jax.Array) -> jax.Array:
        return jnp.asarray(info_nce(q, p, scale))

    def two_way(log_scale: jax.Array) -> jax.Array:
        return jnp.asarray(clip_loss(q, p, jnp.exp(log_scale)))

    rows, slope = jax.value_and_grad(lambda q: one_way(q, p))(q)
    columns = one_way(p, q)
    both, slope_of_scale = jax.value_and_grad(two_way)(jnp.log(scale))
    # dQ = G P with G = (A − I)/(B tau): solved for A − I, since the keys are independent.
    residual = np.linalg.lstsq(np.asarray(p).T, np.asarray(slope).T, rcond=None)[0].T * 2 * TAU
    return [
        *_one_by_one("row", q, p, ((0.26328, -0.27777), (0.51302, -0.16052))),
        *_one_by_one("column", p, q, ((0.37110, -0.24802), (0.37110, -0.24802))),
        number("F1: InfoNCE of the hand example.", 0.38815, float(rows), 6e-6),
        number("F1: its column loss.", 0.37110, float(columns), 6e-6),
        number("F1: CLIP's loss.", 0.37962, float(both), 6e-6),
        number("F1: A − I, row 1.", 0.23148, float(residual[0, 1]), 6e-6),
        number("F1: A − I, row 2.", 0.40131, float(residual[1, 0]), 6e-6),
        number("F1: dL/dα.", -0.23358, float(slope_of_scale), 6e-6),
    ]


def _one_by_one(
    word: str, queries: jax.Array, keys: jax.Array, expected: tuple[tuple[float, float], ...]
) -> list[Check]:
    """F1: the loss of every row (or column), and its term of dL/dα."""
    checks = []
    for i, (expected_loss, expected_term) in enumerate(expected):
        one, others = slice(i, i + 1), jnp.delete(keys, i, axis=0)

        def loss(log_scale: jax.Array, one: slice = one, others: jax.Array = others) -> jax.Array:
            scale = jnp.exp(log_scale)
            found = info_nce(queries[one], keys[one], scale, negatives=others, in_batch=False)
            return jnp.asarray(found)

        found, term = jax.value_and_grad(loss)(jnp.log(jnp.float32(1 / TAU)))
        checks += [
            number(f"F1: loss of {word} {i + 1}.", expected_loss, float(found), 6e-6),
            number(f"F1: {word} {i + 1}'s term of dL/dα.", expected_term, float(term), 6e-6),
        ]
    return checks


def pairs() -> tuple[np.ndarray, np.ndarray]:
    """A batch of a trained model's kind: a positive stands out, and others come near."""
    rng = np.random.default_rng(0)
    images, noise = (
        np.asarray(normalize(rng.standard_normal((BATCH, DIM), np.float32))) for _ in range(2)
    )
    return images, np.asarray(normalize(SHARE * images + np.sqrt(1 - SHARE**2) * noise))


def laws() -> list[Check]:
    """What holds for every batch: rows of A − I sum to 0, the gradient is observed minus
    expected, and perpendicular to the rows before they were normalised."""
    q, p = (jnp.asarray(x) for x in pairs())
    scale = jnp.float32(10)

    def one_way(q: jax.Array, p: jax.Array) -> jax.Array:
        return jnp.asarray(info_nce(q, p, scale))

    def raw(q: jax.Array, p: jax.Array) -> jax.Array:
        return one_way(normalize(q), normalize(p))

    cosines = np.asarray(q, np.float64) @ np.asarray(p, np.float64).T
    expected = np.exp(cosines * 10)
    expected /= expected.sum(1, keepdims=True)
    g = (expected - np.eye(BATCH)) * 10 / BATCH
    slope = np.asarray(jax.grad(one_way)(q, p))
    apart = float(np.abs(slope - g @ p).max() / np.abs(g @ p).max())
    # Keys get one more entry, 1, and queries 0: the gradient on that 0 is the sum of G's row.
    wide_q, wide_p = (jnp.pad(x, ((0, 0), (0, 1)), constant_values=v) for x, v in ((q, 0), (p, 1)))
    sums = np.asarray(jax.grad(one_way)(wide_q, wide_p))[:, -1] * BATCH / 10
    longer = (3 * q, 0.5 * p)
    slopes = jax.grad(raw, (0, 1))(*longer)
    along = max(float(_cosine(x, dx)) for x, dx in zip(longer, slopes, strict=True))
    return [
        Check("Rows of A − I sum to 0.", "< 1e-5", f"{np.abs(sums).max():.1e}",
              bool(np.abs(sums).max() < 1e-5)),
        Check("dQ = G P: observed minus expected.", "< 1e-4", f"{apart:.1e}", apart < 1e-4),
        Check("Through normalisation, gradients are perpendicular.", "cosine < 1e-5",
              f"{along:.1e}", along < 1e-5),
    ]  # fmt: skip


def _cosine(x: jax.Array, y: jax.Array) -> jax.Array:
    """The largest of the rows', without its sign."""
    return jnp.max(jnp.abs(jnp.sum(normalize(x) * normalize(y), axis=1)))


def weights(tau: float) -> tuple[np.ndarray, float]:
    """Of each query's negatives, the shares of the push by hardness, the hardest first, averaged
    over the queries; and the sum of the weights A_ij / tau."""
    q, p = pairs()
    found = hardness_weights(q, p, jnp.float32(1 / tau), BATCH - 1)
    hardest, total = np.asarray(found.hardest, np.float64), np.asarray(found.total, np.float64)
    return (hardest / total[:, None]).mean(0), float(total.mean()) / tau


def run(context: Context) -> Outcome:
    """F1, and F5's weights on the hardest negatives."""
    found = {tau: weights(tau) for tau in TAUS}
    top = max(1, round(HARDEST * (BATCH - 1)))
    lines: list[tuple[Any, ...]] = []
    for tau in TAUS:
        shares, push = found[tau]
        effective = float(np.exp(-(shares * np.log(np.maximum(shares, 1e-300))).sum()))
        lines.append((tau, float(shares[:top].sum()), effective, push))
    shares = [line[1] for line in lines]
    checks = hand_checks() + laws()
    checks.append(
        Check(
            "F5: the smaller tau, the more weight on the hardest 1 %.",
            "decreasing in tau",
            ", ".join(f"{share:.3f}" for share in shares),
            bool(np.all(np.diff(shares) < 0)),
        )
    )
    checks.append(
        Check(
            "F5: nearly all of it at tau = .01, hardly more than its part at tau = 1.",
            "> .8 and < .03",
            f"{shares[0]:.3f} and {shares[-1]:.3f}",
            shares[0] > 0.8 and shares[-1] < 0.03,
        )
    )
    ranks = np.arange(1, BATCH) / (BATCH - 1)
    plot = Plot(
        "weights",
        "How the push is shared among a query's negatives",
        "hardest share of the negatives",
        "their share of the gradient weight",
        tuple(
            curve(f"tau = {tau:g}", list(zip(ranks, np.cumsum(found[tau][0]), strict=True)))
            for tau in TAUS
        ),
        x_log=True,
    )
    head = ("tau", "share of the hardest 1 %", "negatives that count", "Σ A_ij / tau")
    caption = f"{BATCH} pairs in {DIM} dimensions, positive cosine {SHARE} in the mean."
    return Outcome(
        name="gradient_anatomy",
        title="Gradient anatomy: observed minus expected",
        question="What does the gradient of InfoNCE consist of, and which negatives does it push "
        "at which temperature?",
        published="Wang & Liu 2021: the loss is hardness-aware, and tau decides how much; the "
        "numbers are the seed document's (F1, F5).",
        tables=(Table("weights", caption, head, tuple(lines)),),
        plots=(plot,),
        checks=tuple(checks),
        notes=("“Negatives that count” is exp of the entropy of the shares.",),
    )
