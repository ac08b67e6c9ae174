"""The oracle against numbers worked out elsewhere and against finite differences."""

import functools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from contrastive import reference

# Two queries and two keys whose cosines are those of the worked example, as (C, I).
COSINES = np.array([[0.8, 0.2], [0.4, 0.6]])
SET_S = (
    np.array([[1.0, 0], [0, 1], [1, 1], [1, -1]]),
    np.array([[2.0, 1], [-1, 2], [1, 2], [1, -3]]),
)
SET_S_GRADIENTS = (
    [[0, -0.35259098], [0.77638528, 0], [0.39279291, -0.39279291], [0.00421473, 0.00421473]],
    [
        [-0.16295385, 0.32590771],
        [-0.11124224, -0.05562112],
        [-0.32377915, 0.16188958],
        [0.00114296, 0.00038099],
    ],
)


def unit(rng, *shape):
    return reference.normalize(rng.normal(size=shape))


# --- facts ----------------------------------------------------------------------------------------


def test_F1_worked_example():
    eye, scale = np.eye(2), 2.0
    loss, grads = reference.info_nce(COSINES, eye, scale)
    assert loss == pytest.approx(0.38815, abs=5e-6)
    rows = [
        reference.info_nce(COSINES, eye, scale, weights=np.eye(2)[i] + 1e-300)[0] for i in (0, 1)
    ]
    np.testing.assert_allclose(rows, [0.26328, 0.51302], atol=5e-6)
    # dQ = G P with P = I, B tau = 1: the gradient is A - I itself.
    a = np.array([[-0.23148, 0.23148], [0.40131, -0.40131]])
    np.testing.assert_allclose(grads["queries"], a, atol=5e-6)
    np.testing.assert_allclose(grads["queries"].sum(1), 0, atol=1e-15)
    columns = reference.info_nce(COSINES.T, eye, scale)[0]
    assert columns == pytest.approx(0.37110, abs=5e-6)
    loss, *_, dt = reference.clip_loss_grad(COSINES, eye, math.log(2))
    assert loss == pytest.approx(0.37962, abs=5e-6)
    assert dt == pytest.approx(-0.23358, abs=5e-6)
    terms = [
        scale * reference.info_nce(c, eye, scale, weights=w)[1]["scale"]
        for c in (COSINES, COSINES.T)
        for w in ([1, 1e-300], [1e-300, 1])
    ]
    np.testing.assert_allclose(terms, [-0.27777, -0.16052, -0.24802, -0.24802], atol=5e-6)


@pytest.mark.parametrize(
    "tau, random, identical", [(1.0, (5.545, 0.02), (4.56, 0.01)), (0.05, (8.7, 0.2), (1e-5, 9e-6))]
)
def test_F2_random_and_identical_pairs(tau, random, identical):
    rng = np.random.default_rng(0)
    q, p = unit(rng, 256, 64), unit(rng, 256, 64)
    for keys, (value, wobble) in ((p, random), (q, identical)):
        assert reference.info_nce(q, keys, 1 / tau)[0] == pytest.approx(value, abs=wobble)


def test_F3_one_row_at_its_best():
    keys = -np.ones((256, 1))
    keys[0] = 1.0
    weights = np.full(256, 1e-300)
    weights[0] = 1.0
    loss = reference.info_nce(np.ones((256, 1)), keys, 1.0, weights=weights)[0]
    assert loss == pytest.approx(3.570, abs=5e-4)
    assert math.exp(-loss) == pytest.approx(0.02816, abs=5e-6)


def test_F3b_the_regular_simplex_is_the_minimum_of_a_batch():
    simplex = reference.normalize(np.eye(256) - 1 / 256)
    loss, grads = reference.info_nce(simplex, simplex, 1.0)
    assert loss == pytest.approx(math.log(1 + 255 * math.exp(-256 / 255)), rel=1e-12)
    assert loss == pytest.approx(4.548, abs=5e-4)
    flat = reference.through_normalize(simplex, grads["queries"] + grads["keys"])
    np.testing.assert_allclose(flat, 0, atol=1e-15)


@functools.cache
def gaussian_bound(dim, rho, n, draws):
    """The bound with the optimal critic, and its standard error."""
    rng = np.random.default_rng(dim * 1000 + n)
    var, bounds = 1 - rho**2, []
    for _ in range(draws):
        x = rng.normal(size=(n, dim))
        y = rho * x + math.sqrt(var) * rng.normal(size=(n, dim))
        given = -((y[None] - rho * x[:, None]) ** 2).sum(-1) / (2 * var)
        scores = given - dim / 2 * math.log(var) + (y**2).sum(-1)[None] / 2
        bounds.append(reference.nce_mi_estimate(scores.T))
    return np.mean(bounds), np.std(bounds) / math.sqrt(draws)


def test_F4_the_bound_is_tight_when_little_is_shared():
    information = -0.5 * math.log(1 - 0.81)
    assert information == pytest.approx(0.830, abs=5e-4)
    bound, error = gaussian_bound(1, 0.9, 128, 200)
    assert bound == pytest.approx(information, abs=0.02 + 3 * error)


@pytest.mark.parametrize(
    "n, expected", [(2, 0.69), (8, 2.05), (32, 3.34), (128, 4.48), (512, 5.40)]
)
def test_F4_the_bound_stays_below_log_n(n, expected):
    assert -4 * math.log(1 - 0.81) == pytest.approx(6.643, abs=1e-3)
    bound, error = gaussian_bound(8, 0.9, n, max(8, 4000 // n))
    assert bound == pytest.approx(expected, abs=0.01 + 4 * error)
    assert bound < math.log(n)


def test_F7_collapse_and_the_limit_of_many_negatives():
    same = np.tile(unit(np.random.default_rng(0), 1, 5), (9, 1))
    assert reference.alignment_uniformity(same, same) == pytest.approx((0.0, 0.0), abs=1e-12)
    rng = np.random.default_rng(1)
    tau, expected, gaps = 0.5, [], []
    # In 3 dimensions E_y exp(x·y/tau) = tau sinh(1/tau) for y uniform on the sphere, any x.
    for size in (64, 2048):
        q = unit(rng, size, 3)
        p = reference.normalize(q + 0.3 * rng.normal(size=q.shape))
        expected = -(q * p).sum(1).mean() / tau + math.log(tau * math.sinh(1 / tau))
        # The keys are uniform too: isotropic noise around isotropic points.
        gaps.append(abs(reference.info_nce(q, p, 1 / tau)[0] - math.log(size) - expected))
    assert gaps[1] < 0.02
    assert gaps[1] < gaps[0]


def test_F7_alignment_and_uniformity_by_definition():
    rng = np.random.default_rng(2)
    a, b = unit(rng, 6, 4), unit(rng, 6, 4)
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]

    def uniform(x):
        return math.log(np.mean([math.exp(-2 * ((x[i] - x[j]) ** 2).sum()) for i, j in pairs]))

    alignment, uniformity = reference.alignment_uniformity(a, b)
    assert alignment == pytest.approx(np.mean(((a - b) ** 2).sum(1)))
    assert uniformity == pytest.approx((uniform(a) + uniform(b)) / 2)


# --- cases ----------------------------------------------------------------------------------------


def set_s(scale, rows=slice(None)):
    images, texts = (x[rows] for x in SET_S)
    loss, grads = reference.clip_loss(
        reference.normalize(images), reference.normalize(texts), scale
    )
    raw = [
        reference.through_normalize(x, grads[name])
        for x, name in ((images, "images"), (texts, "texts"))
    ]
    return loss, raw


def test_A01_set_s():
    loss, raw = set_s(10.0)
    assert loss == pytest.approx(0.360630305903, abs=1e-12)
    images, texts = (reference.normalize(x) for x in SET_S)
    assert reference.info_nce(images, texts, 10.0)[0] == pytest.approx(0.352592884303, abs=1e-12)
    assert reference.info_nce(texts, images, 10.0)[0] == pytest.approx(0.368667727503, abs=1e-12)
    assert set_s(1 / 0.07)[0] == pytest.approx(0.365489608492, abs=1e-12)
    assert set_s(1.0)[0] == pytest.approx(0.905362337615, abs=1e-12)
    for found, expected in zip(raw, SET_S_GRADIENTS, strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-9)


def test_A04_A06_values_of_the_faults():
    images, texts = (reference.normalize(x) for x in SET_S)
    logits = 10 * images @ texts.T
    wrong = [
        np.mean(np.log(np.exp(x).sum(1)) - x[np.arange(4), [0, 1, 0, 1]])
        for x in (logits, logits.T)
    ]
    assert np.mean(wrong) == pytest.approx(5.595243656717, abs=1e-11)
    halves = (set_s(10.0, slice(0, 2))[0] + set_s(10.0, slice(2, 4))[0]) / 2
    assert halves == pytest.approx(0.002841294525, abs=1e-12)


def test_A09_short_and_padded_batches():
    for size in (8, 3):
        rows = np.ones((size, 4)) / 2
        assert reference.clip_loss(rows, rows, 17.0)[0] == pytest.approx(math.log(size))
    rows = np.full((8, 4), np.nan)
    rows[:3] = 0.5
    loss, grads = reference.clip_loss(rows, rows, 17.0, weights=np.arange(8) < 3)
    assert loss == pytest.approx(1.0986123, abs=5e-8)
    assert all(np.isfinite(grad).all() for grad in grads.values())
    np.testing.assert_array_equal(grads["images"][3:], 0)


def test_A11_A13_sigmoid():
    eye = np.eye(4)
    assert reference.sigmoid_loss(eye, eye, 10.0, -10.0)[0] == pytest.approx(0.693283377258)
    zeros = np.zeros((8, 4))
    assert reference.sigmoid_loss(zeros, zeros, 10.0, -10.0)[0] == pytest.approx(10.000363191)
    assert reference.sigmoid_loss(zeros, zeros, 10.0, 0.0)[0] == pytest.approx(8 * math.log(2))


def test_A15_the_seed_s_clip_keeps_the_gradient_of_a_limited_scale():
    rng = np.random.default_rng(0)
    q, p = unit(rng, 5, 4), unit(rng, 5, 4)
    above = reference.clip_loss_grad(q, p, 4.7)
    limit = reference.clip_loss_grad(q, p, math.log(100.0))
    assert above[0] == pytest.approx(limit[0])
    assert above[3] == pytest.approx(limit[3])
    assert above[3] != 0


@pytest.mark.parametrize("places, expected", [(1, 0.25), (2, 0.5), (4, 1.0), (9, 1.0)])
def test_D03_ties_score_chance(places, expected):
    recall = reference.recall_at_k(np.ones((4, 4)), np.eye(4), places)
    np.testing.assert_allclose(recall, expected)


def test_D03_mixed_ties():
    scores = np.array([[1, 1, 1], [5, 5, 5], [0, 0, 1]])
    np.testing.assert_allclose(reference.recall_at_k(scores, np.eye(3), 1), [1 / 3, 1 / 3, 1])


@hypothesis.given(st.integers(1, 6), st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=20, deadline=None)
def test_D03_expected_recall_is_that_of_random_orders(places, seed):
    rng = np.random.default_rng(seed)
    scores, positive = rng.integers(0, 3, (1, 6)), rng.integers(0, 2, (1, 6)).astype(bool)
    positive[0, 0] = True
    hits = []
    for _ in range(3000):
        order = np.lexsort((rng.random(6), -scores[0]))
        hits.append(positive[0, order[:places]].any())
    assert reference.recall_at_k(scores, positive, places)[0] == pytest.approx(
        np.mean(hits), abs=0.05
    )


# --- gradients ------------------------------------------------------------------------------------


def pairs(seed=0, batch=5, dim=4, k=2):
    rng = np.random.default_rng(seed)
    return unit(rng, batch, dim), unit(rng, batch, dim), unit(rng, batch, k, dim)


X, Y, HARD = pairs()
IDS = np.array([3, 1, 3, -1, -1], np.int32)
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.0, 0.7])
OPTIONS = {"ids": IDS, "weights": WEIGHTS}
HARD_OPTIONS = {
    "key_ids": IDS,
    "negative_ids": np.array([[1, 3], [3, 4], [5, 1], [-1, -1], [-1, 3]], np.int32),
    "negative_weights": np.array([[1.0, 1], [0.2, 1], [0, 1], [1, 1], [1, 0]]),
    "weights": WEIGHTS,
}
KERNEL = np.random.default_rng(3).normal(size=(12, 3))
LABELS = np.array([0, 2, 1, 1, 0])
CASES = {
    "info_nce": (reference.info_nce, (X, Y, 7.0), {}),
    "info_nce ids": (reference.info_nce, (X, Y, 7.0), {"key_ids": IDS, "weights": WEIGHTS}),
    "hard": (reference.info_nce, (X, Y, 7.0), {"negatives": HARD, **HARD_OPTIONS}),
    "own": (
        reference.info_nce,
        (X, Y, 7.0),
        {"negatives": HARD, "share_negatives": False, **HARD_OPTIONS},
    ),
    "queue": (reference.info_nce, (X, Y, 7.0), {"negatives": HARD[:, 0], "in_batch": False}),
    "clip": (reference.clip_loss, (X, Y, 7.0), OPTIONS),
    "clip 100": (reference.clip_loss, (X, Y, 100.0), {}),
    "decoupled": (reference.decoupled_loss, (X, Y, 7.0), OPTIONS),
    "decoupled one way": (reference.decoupled_loss, (X, Y, 7.0), {"two_way": False}),
    "gte": (reference.gte_loss, (X, Y, 7.0), OPTIONS),
    "nt_xent": (reference.nt_xent, (X, Y, 7.0), OPTIONS),
    "sigmoid": (reference.sigmoid_loss, (X, Y, 7.0, -2.0), OPTIONS),
    "sigmoid multi": (
        reference.sigmoid_loss,
        (X, Y, 7.0, -2.0),
        {**OPTIONS, "multi_positive": True},
    ),
    "multi": (reference.multi_positive_loss, (X, Y, 7.0), OPTIONS),
    "multi one way": (reference.multi_positive_loss, (X, Y, 7.0), {**OPTIONS, "two_way": False}),
    "triplet": (reference.triplet_loss, (X, Y, HARD), {"weights": WEIGHTS}),
    "triplet hard": (reference.triplet_loss, (X, Y), {"mining": "batch_hard", **OPTIONS}),
    "triplet all": (reference.triplet_loss, (X, Y), {"mining": "batch_all", **OPTIONS}),
    "classifier": (
        reference.classifier_loss,
        (X, Y, KERNEL, LABELS),
        {"weights": WEIGHTS, "bias": np.array([0.1, -0.2, 0.3])},
    ),
}
ARGUMENTS = {
    "triplet": ("anchors", "positives", "negatives"),
    "classifier": ("first", "second", "kernel"),
    "info_nce": ("queries", "keys", "scale"),
    "gte": ("queries", "keys", "scale"),
    "nt_xent": ("view_a", "view_b", "scale"),
}


def central_difference(function, x, step=1e-6):
    x = np.array(x, np.float64)
    grad = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        old, ends = x[at], []
        for new in (old + step, old - step):
            x[at] = new
            ends.append(function(x))
        x[at] = old
        grad[at] = (ends[0] - ends[1]) / (2 * step)
    return grad


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_derivatives(name):
    loss, args, options = CASES[name]
    names = ARGUMENTS.get(loss.__name__.removesuffix("_loss"), ("images", "texts", "scale", "bias"))
    grads = loss(*args, **options)[1]
    checked = 0
    for at, argument in enumerate(names[: len(args)]):
        expected = central_difference(
            lambda x, at=at: loss(*args[:at], x, *args[at + 1 :], **options)[0], args[at]
        )
        np.testing.assert_allclose(grads[argument], expected, atol=2e-8, rtol=1e-7)
        checked += np.any(expected != 0)
    assert checked == min(len(args), len(names))
    for argument in ("negatives", "bias"):
        if argument in options:
            expected = central_difference(
                lambda x, argument=argument: loss(*args, **{**options, argument: x})[0],
                options[argument],
            )
            np.testing.assert_allclose(grads[argument], expected, atol=2e-8, rtol=1e-7)


# --- options and laws -----------------------------------------------------------------------------


def test_negatives_by_hand():
    """Two queries, one shared negative each, against sums written out."""
    q, p, hard = X[:2], Y[:2], HARD[:2, :1]
    ids, hard_ids = np.array([7, 8]), np.array([[8], [9]])
    s, h = q @ p.T, q @ hard[:, 0].T

    def row(i, *others):
        return math.log(1 + sum(math.exp(x - s[i, i]) for x in others))

    def loss(**options):
        return reference.info_nce(
            q, p, 1.0, negatives=hard, key_ids=ids, negative_ids=hard_ids, **options
        )[0]

    # Negative 0 is query 1's own positive content: left out of row 1.
    assert loss() == pytest.approx((row(0, s[0, 1], *h[0]) + row(1, s[1, 0], h[1, 1])) / 2)
    own = (row(0, s[0, 1], h[0, 0]) + row(1, s[1, 0], h[1, 1])) / 2
    assert loss(share_negatives=False) == pytest.approx(own)
    assert loss(in_batch=False) == pytest.approx((row(0, *h[0]) + row(1, h[1, 1])) / 2)
    absent = (row(0, s[0, 1], h[0, 0]) + row(1, s[1, 0])) / 2
    assert loss(negative_weights=[[1.0], [0.0]]) == pytest.approx(absent)
    seed = reference.hard_negative_loss(3 * q, p, hard, 1.0, ids, hard_ids)
    assert seed == pytest.approx(loss())


def test_nt_xent_and_gte_by_hand():
    a, b = X[:2], Y[:2]
    views = np.concatenate([a, b])
    e = np.exp(views @ views.T)
    np.fill_diagonal(e, 0)
    other = [2, 3, 0, 1]
    expected = np.mean([-math.log(e[i, other[i]] / e[i].sum()) for i in range(4)])
    assert reference.nt_xent(a, b, 1.0)[0] == pytest.approx(expected)
    ab, aa, bb = (np.exp(x @ y.T) for x, y in ((a, b), (a, a), (b, b)))
    rows = []
    for i, j in ((0, 1), (1, 0)):
        total = ab[i].sum() + ab[j, i] + aa[i, j] + bb[i, j]
        rows.append(-math.log(ab[i, i] / total))
    assert reference.gte_loss(a, b, 1.0)[0] == pytest.approx(np.mean(rows))


def test_multi_positive_by_hand():
    s = 3 * X @ Y.T
    lse = np.log(np.exp(s).sum(1))
    ids = np.array([1, 2, 1, -1, -1])
    positives = [[0, 2], [1], [0, 2], [3], [4]]
    expected = np.mean([lse[i] - s[i, p].mean() for i, p in enumerate(positives)])
    found = reference.multi_positive_loss(X, Y, 3.0, ids=ids, two_way=False)[0]
    assert found == pytest.approx(expected)
    z = np.where(reference.same_content(ids, ids) | np.eye(5, dtype=bool), 1, -1)
    expected = np.log1p(np.exp(-z * (s - 1))).sum() / 5
    found = reference.sigmoid_loss(X, Y, 3.0, -1.0, ids=ids, multi_positive=True)[0]
    assert found == pytest.approx(expected)


@hypothesis.given(st.permutations(range(5)))
@hypothesis.settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("name", ["clip", "decoupled", "gte", "nt_xent", "sigmoid", "multi"])
def test_permuted_pairs_permute_the_gradients(name, order):
    function, args, options = CASES[name]
    loss, grads = function(*args, **options)
    moved, permuted = function(
        args[0][order],
        args[1][order],
        *args[2:],
        **{key: value[order] for key, value in options.items()},
    )
    assert moved == pytest.approx(loss, rel=1e-12)
    for argument, grad in grads.items():
        grad = grad[order] if np.ndim(grad) == 2 else grad
        np.testing.assert_allclose(permuted[argument], grad, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in CASES if n != "classifier"])
def test_all_weights_zero_gives_zero(name):
    function, args, options = CASES[name]
    loss, grads = function(*args, **{**options, "weights": np.zeros(5)})
    assert loss == 0
    assert all((grad == 0).all() for grad in grads.values())


def test_padded_rows_may_hold_anything():
    for name in CASES:
        function, args, options = CASES[name]
        if not np.array_equal(options.get("weights"), WEIGHTS):
            continue
        spoiled, names = [*args], {**options}
        for at in (0, 1):
            spoiled[at] = args[at].copy()
            spoiled[at][3] = np.nan
        if name in ("hard", "own"):
            names["negatives"] = HARD.copy()
            names["negatives"][3] = np.nan
            names["negatives"][2, 0] = np.inf  # weight 0
        loss, grads = function(*spoiled, **names)
        assert loss == pytest.approx(function(*args, **options)[0], rel=1e-14), name
        assert all(np.isfinite(grad).all() for grad in grads.values()), name


def test_64_bit_ids_are_words_and_minus_one_equals_nothing():
    wide = np.array([5, 5 + 2**32, 5, -1, -1], np.int64).view(np.uint32).reshape(5, 2)
    same = reference.same_content(wide, wide)
    expected = np.zeros((5, 5), bool)
    expected[np.ix_([0, 2], [0, 2])] = True
    expected[1, 1] = True
    np.testing.assert_array_equal(same, expected)


def test_well_aligned_pairs_keep_their_digits_at_scale_100():
    """exp(-100 · gap) is far below one; the loss and gradient still have all digits."""
    q = np.eye(3)
    loss, grads = reference.clip_loss(q, q, 100.0)
    assert loss == pytest.approx(2 * math.exp(-100), rel=1e-12)
    assert grads["images"][0, 1] == pytest.approx(100 * 2 / 6 * math.exp(-100), rel=1e-12)


def test_gradient_is_perpendicular_to_raw_rows():
    rng = np.random.default_rng(5)
    q, p = rng.normal(size=(6, 4)), 7 * rng.normal(size=(6, 4))
    loss, dq, dp = reference.infonce_grad(q, p, 0.1)
    assert loss == pytest.approx(
        reference.info_nce(reference.normalize(q), reference.normalize(p), 10.0)[0]
    )
    np.testing.assert_allclose((q * dq).sum(1), 0, atol=1e-14)
    np.testing.assert_allclose((p * dp).sum(1), 0, atol=1e-14)
    expected = central_difference(lambda x: reference.infonce_grad(x, p, 0.1)[0], q)
    np.testing.assert_allclose(dq, expected, atol=1e-8)


def test_hardness_weights_follow_the_temperature():
    """F5: a low temperature puts nearly all weight on the hardest negative."""
    weights = [reference.hardness_weights(X, Y, scale) for scale in (1.0, 100.0)]
    share = [(w.max(1) / w.sum(1)).mean() for w in weights]
    assert share[0] < 0.6 < 0.9 < share[1]
