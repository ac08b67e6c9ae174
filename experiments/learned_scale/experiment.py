"""Loss against scale for batches of three difficulties, and where a learned scale settles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float

from contrastive.geometry import normalize
from contrastive.losses import clip_loss
from contrastive.sweeps.seeds import mean
from contrastive.temperature import clip_log_scale, initial_log_scale
from experiments.common.outcome import Check, Outcome, Plot, Table, curve, shown
from experiments.common.runner import Context
from experiments.common.seeds import SEEDS

# The generator: images are random directions, a caption is `share · image + √(1 − share²) · noise`,
# scaled to unit length. Chosen so that the middle one has about 7 % mistakes.
SHARES = {"clean": 0.88, "middle": 0.65, "hard": 0.3}
DIM, BATCH, BATCHES = 24, 64, 32
SCALES = np.geomspace(1, 200, 80)
STEPS, RATE = 400, 0.03


def batches(share: float, seed: int) -> tuple[Float[Array, "n b d"], Float[Array, "n b d"]]:
    """Images and captions."""
    one, two = jax.random.split(jax.random.key(seed))
    images = normalize(jax.random.normal(one, (BATCHES, BATCH, DIM)))
    noise = normalize(jax.random.normal(two, (BATCHES, BATCH, DIM)))
    return images, normalize(share * images + (1 - share**2) ** 0.5 * noise)


def mean_loss(images: Array, captions: Array, scale: Array) -> Array:
    """The CLIP loss, mean over the batches."""

    def one(both: tuple[Array, Array]) -> Array:
        found = clip_loss(both[0], both[1], scale)
        assert isinstance(found, Array)
        return found

    return jnp.mean(jax.lax.map(one, (images, captions)))


@jax.jit
def by_scale(images: Array, captions: Array) -> Array:
    """The loss at every scale."""
    scales = jnp.asarray(SCALES, jnp.float32)
    return jax.lax.map(functools.partial(mean_loss, images, captions), scales)


def mistakes(images: Array, captions: Array) -> float:
    """Share of images and captions that do not find their own."""
    cosines = np.einsum("nid,njd->nij", np.asarray(images), np.asarray(captions))
    own = np.diagonal(cosines, axis1=1, axis2=2)
    return float(np.mean([(cosines.max(axis) > own).mean() for axis in (1, 2)]))


def learned(images: Array, captions: Array, limit: float | None) -> np.ndarray:
    """The scale at every step, learned by descent from CLIP's start, the rows staying as they
    are."""
    clip = optax.identity() if limit is None else clip_log_scale(limit)
    # By the sign of the gradient alone: that of the clean batch shrinks faster than Adam forgets.
    optimizer = optax.chain(optax.sign_sgd(optax.cosine_decay_schedule(RATE, STEPS)), clip)

    def step(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple, Array]:
        log_scale, state = carry
        slope = jax.grad(lambda x: mean_loss(images, captions, jnp.exp(x)))(log_scale)
        update, state = optimizer.update(slope, state, log_scale)
        log_scale = jnp.asarray(optax.apply_updates(log_scale, update))
        return (log_scale, state), jnp.exp(log_scale)

    @jax.jit
    def run(start: Array) -> Array:
        return jax.lax.scan(step, (start, optimizer.init(start)), None, length=STEPS)[1]

    with jax.numpy_dtype_promotion("standard"):  # optax's schedule divides whole numbers
        return np.asarray(run(jnp.float32(initial_log_scale())))


def run(context: Context) -> Outcome:
    """F6 of the seed document."""
    drawn = {name: [batches(share, seed) for seed in SEEDS] for name, share in SHARES.items()}
    found = {name: [np.asarray(by_scale(*pair)) for pair in pairs] for name, pairs in drawn.items()}
    wrong = {name: mean([mistakes(*pair) for pair in pairs]) for name, pairs in drawn.items()}
    lowest = {
        name: [float(SCALES[int(np.argmin(x))]) for x in each] for name, each in found.items()
    }
    best = {name: mean(values) for name, values in lowest.items()}
    # Curves, and what is learned, are those of the first seed.
    data = {name: pairs[0] for name, pairs in drawn.items()}
    losses = {name: each[0] for name, each in found.items()}
    paths = {
        (name, limit): learned(*pair, limit)
        for name, pair in data.items()
        for limit in (100.0, None)
    }
    ends = {key: float(path[-1]) for key, path in paths.items()}
    caption = (
        f"{BATCHES} batches of {BATCH}, {DIM} dimensions. Mistakes and best scale: mean over three "
        f"seeds with 95 % interval, among scales up to {SCALES[-1]:.0f}; learned scales: the first "
        "seed."
    )
    head = ("batch", "mistakes", "best scale", "learned, clip 100", "learned, no clip")
    lines = tuple(
        (name, wrong[name], best[name], ends[name, 100.0], ends[name, None]) for name in SHARES
    )
    plots = (
        Plot(
            "loss",
            "Loss against scale",
            "scale",
            "CLIP loss",
            tuple(curve(name, list(zip(SCALES, losses[name], strict=True))) for name in SHARES),
            x_log=True,
        ),
        Plot(
            "learned",
            f"A learned scale, {STEPS} steps",
            "step",
            "scale",
            tuple(
                curve(
                    f"{name}, {'no clip' if limit is None else 'clip 100'}",
                    [(step + 1.0, float(paths[name, limit][step])) for step in range(STEPS)],
                )
                for name, limit in paths
            ),
            y_log=True,
            references=(("the clip", 100.0),),
        ),
    )
    return Outcome(
        name="learned_scale",
        title="Where a learned scale settles, and what the clip does",
        question="How does the loss depend on the scale where pairs are easy, and where they are "
        "hard; and where does gradient descent take a learned scale?",
        published="CLIP (Radford et al. 2021) starts at 1/.07 and clips at 100; the shapes are the "
        "seed document's (F6).",
        tables=(Table("scales", caption, head, lines),),
        plots=plots,
        checks=_checks(
            losses,
            {name: one.value for name, one in wrong.items()},
            {name: values[0] for name, values in lowest.items()},
            ends,
        ),
        notes=(
            "Generator: images are random directions, captions share · image + √(1 − share²) · "
            f"noise; share {', '.join(f'{k} {v}' for k, v in SHARES.items())}; seeds {SEEDS}.",
            "The scale follows the sign of its gradient, at a rate that falls to zero. Adam (.03, "
            "400 steps) came to 39.6 on the clean batch: its memory of larger gradients stops it "
            "where rows do not change.",
        ),
    )


def _checks(losses: dict, wrong: dict, best: dict, ends: dict) -> tuple[Check, ...]:
    def check(what: str, expected: str, value: float, met: bool) -> Check:
        return Check(f"F6: {what}", expected, shown(float(value)), bool(met))

    below = SCALES <= 100
    falling = bool(np.all(np.diff(losses["clean"][below]) <= 0))
    settled = {name: ends[name, None] / best[name] for name in ("middle", "hard")}
    return (
        check("the clean batch makes no mistakes.", "0", wrong["clean"], wrong["clean"] == 0),
        check("its loss falls all the way to the clip.", "falling to 100", best["clean"], falling),
        check(
            "the middle batch has about 7 % mistakes.",
            ".05 to .09",
            wrong["middle"],
            0.05 <= wrong["middle"] <= 0.09,
        ),
        check("its best scale is near 30.", "24 to 37", best["middle"], 24 <= best["middle"] <= 37),
        check("the hard batch wants a small scale.", "< 15", best["hard"], best["hard"] < 15),
        check(
            "a learned scale settles at the best one (middle).",
            "within 5 %",
            ends["middle", None],
            abs(settled["middle"] - 1) < 0.05,
        ),
        check(
            "a learned scale settles at the best one (hard).",
            "within 5 %",
            ends["hard", None],
            abs(settled["hard"] - 1) < 0.05,
        ),
        check(
            "the clip stops the clean one at 100.",
            "100",
            ends["clean", 100.0],
            abs(ends["clean", 100.0] - 100) < 1e-2,
        ),
        check("without it, it runs on.", "> 200", ends["clean", None], ends["clean", None] > 200),
        check(
            "the clip does nothing to the others.",
            "equal",
            ends["middle", 100.0] - ends["middle", None],
            abs(ends["middle", 100.0] / ends["middle", None] - 1) < 1e-3,
        ),
    )
