"""Every loss and measure in plain NumPy float64: what the fast paths are compared with.

Whole matrices, gradients by formula: each loss returns ``(loss, gradients by argument name)``. The
rules that all losses share:

* Row ``i`` exists where its weight is positive. Rows that don't exist are neither queries nor
  candidates, whatever they hold; a query that doesn't exist takes its own ``negatives`` with it.
* The loss is ``Σ w_i l_i / Σ w_i``, 0 when all weights are 0; candidates are not weighted.
* A candidate whose known content id equals the row's own is left out; the own pair never is.
* A row without negatives has softmax loss 0. In the decoupled loss, which has no value there, such
  a row is left out of the divisor too.
* Gradients use ``softplus(n_i − s_ii)`` with ``n_i`` over the negatives only, so that they are
  right to float64 at any scale.
"""

from typing import Any, TypeAlias

import numpy as np

ArrayLike: TypeAlias = Any  # an array of NumPy or JAX, a number, nested lists
Result: TypeAlias = tuple[float, dict[str, np.ndarray]]


def _f64(x: ArrayLike) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def _softplus(x: ArrayLike) -> np.ndarray:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


def _sigmoid(x: ArrayLike) -> np.ndarray:
    return np.asarray(np.exp(-_softplus(-x)))


def _logsumexp(x: np.ndarray) -> np.ndarray:
    """Over the last axis; −inf entries are absent."""
    top = x.max(-1, initial=-np.inf, keepdims=True)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(np.exp(x - safe).sum(-1, keepdims=True)) + safe)[..., 0])


def _softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis; a row without entries gets zeros."""
    total = _logsumexp(x)[..., None]
    return np.exp(x - np.where(np.isfinite(total), total, 0.0))


def same_content(ids: ArrayLike, other: ArrayLike) -> np.ndarray:
    """Which entries have the same known id: int32 ``[n]``, or 64-bit as uint32 ``[n, 2]``."""
    if ids is None or other is None:
        return np.zeros((1, 1), bool)
    words, others = (np.asarray(x) for x in (ids, other))
    if words.ndim == 1:
        return (words[:, None] == others[None]) & (words != -1)[:, None]
    known = (words != np.uint32(0xFFFFFFFF)).any(-1)
    return (words[:, None] == others[None]).all(-1) & known[:, None]


def _existing(weights: ArrayLike | None, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Each row's share ``w_i / Σ w`` and whether it exists."""
    w = np.ones(rows) if weights is None else _f64(weights)
    exists = w > 0
    w = np.where(exists, w, 0.0)
    return w / (w.sum() or 1.0), exists


def _keep(x: ArrayLike, exists: np.ndarray) -> np.ndarray:
    """Zeros in place of the rows that don't exist."""
    return np.where(exists[:, None], _f64(x), 0.0)


class _Tape:
    """Gradients of a function of products ``scale · left rightᵀ`` between named arrays."""

    def __init__(self, scale: ArrayLike, **arrays: np.ndarray):
        self.scale, self.arrays = float(_f64(scale)), arrays
        self.gradients = {name: np.zeros_like(x) for name, x in arrays.items()}
        self.gradients["scale"] = np.zeros(())

    def logits(self, left: str, right: str) -> np.ndarray:
        return self.scale * self.arrays[left] @ self.arrays[right].T

    def pull(self, left: str, right: str, grad: np.ndarray) -> None:
        """Adds what the gradient of ``logits(left, right)`` means for arrays and scale."""
        a, b = self.arrays[left], self.arrays[right]
        self.gradients[left] = self.gradients[left] + self.scale * grad @ b
        self.gradients[right] = self.gradients[right] + self.scale * grad.T @ a
        self.gradients["scale"] = self.gradients["scale"] + (grad * (a @ b.T)).sum()


def _rows(
    tape: _Tape,
    pair: tuple[str, str],
    blocks: list[tuple[str, str, np.ndarray]],
    share: np.ndarray,
    decoupled: bool = False,
) -> float:
    """``Σ_i share_i softplus(n_i − s_ii)`` and its gradients; decoupled: ``n_i − s_ii``.

    ``blocks``: (left, right, which entries are negatives); ``s_ii`` is the diagonal of ``pair``.
    """
    logits = np.concatenate(
        [np.where(mask, tape.logits(left, right), -np.inf) for left, right, mask in blocks], axis=1
    )
    gap = _logsumexp(logits) - np.diagonal(tape.logits(*pair))
    if decoupled:
        has = np.isfinite(gap) & (share > 0)
        share = np.where(has, share, 0.0)
        share = share / (share.sum() or 1.0)
        loss, slope = np.where(has, gap, 0.0), np.ones_like(gap)
    else:
        loss, slope = _softplus(gap), _sigmoid(gap)
    slope = share * slope
    grad = slope[:, None] * _softmax(logits)
    start = 0
    for left, right, mask in blocks:
        tape.pull(left, right, grad[:, start : start + mask.shape[1]])
        start += mask.shape[1]
    tape.pull(*pair, -np.diag(slope))
    return float(share @ loss)


def _pairs(
    scale: ArrayLike, ids: ArrayLike | None, weights: ArrayLike | None, **sides: ArrayLike
) -> tuple[_Tape, np.ndarray, np.ndarray, np.ndarray]:
    """Tape, shares, existing rows and negatives of a batch of pairs."""
    batch = len(np.asarray(next(iter(sides.values()))))
    share, exists = _existing(weights, batch)
    tape = _Tape(scale, **{name: _keep(x, exists) for name, x in sides.items()})
    same = np.eye(batch, dtype=bool) | same_content(ids, ids)
    return tape, share, exists, ~same & exists[:, None] & exists[None, :]


# --- losses ---------------------------------------------------------------------------------------


def info_nce(
    queries: ArrayLike,
    keys: ArrayLike,
    scale: ArrayLike,
    *,
    negatives: ArrayLike | None = None,
    share_negatives: bool = True,
    key_ids: ArrayLike | None = None,
    negative_ids: ArrayLike | None = None,
    negative_weights: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    in_batch: bool = True,
) -> Result:
    """One-way InfoNCE with hard negatives ``[batch, k, dim]`` or a pool or queue ``[m, dim]``.

    With ``share_negatives=False`` query i sees only its own k. ``negative_ids`` are compared with
    ``key_ids``. A negative exists where its weight is positive. ``in_batch=False``: the other keys
    are not candidates (MoCo).
    """
    tape, share, exists, mask = _pairs(scale, key_ids, weights, queries=queries, keys=keys)
    blocks = [("queries", "keys", mask & in_batch)]
    if negatives is None:
        return _rows(tape, ("queries", "keys"), blocks, share), tape.gradients
    extra = _f64(negatives)
    k = extra.shape[1] if extra.ndim == 3 else None
    flat = extra.reshape(-1, extra.shape[-1])
    there = np.ones(len(flat), bool) if k is None else np.repeat(exists, k)
    if negative_weights is not None:
        there = there & (_f64(negative_weights).reshape(-1) > 0)
    candidate = exists[:, None] & there[None, :]
    if negative_ids is not None and key_ids is not None:
        ids = np.asarray(key_ids)
        candidate &= ~same_content(ids, np.asarray(negative_ids).reshape(-1, *ids.shape[1:]))
    if not share_negatives:
        if k is None:
            raise ValueError("share_negatives=False needs negatives [batch, k, dim]")
        candidate &= np.repeat(np.eye(len(exists), dtype=bool), k, axis=1)
    tape.arrays["negatives"] = _keep(flat, there)
    tape.gradients["negatives"] = np.zeros_like(flat)
    loss = _rows(tape, ("queries", "keys"), [*blocks, ("queries", "negatives", candidate)], share)
    tape.gradients["negatives"] = tape.gradients["negatives"].reshape(extra.shape)
    return loss, tape.gradients


def clip_loss(
    images: ArrayLike,
    texts: ArrayLike,
    scale: ArrayLike,
    *,
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Result:
    """Mean of the two one-way losses."""
    tape, share, _, mask = _pairs(scale, ids, weights, images=images, texts=texts)
    rows = _rows(tape, ("images", "texts"), [("images", "texts", mask)], share / 2)
    columns = _rows(tape, ("images", "texts"), [("texts", "images", mask)], share / 2)
    return rows + columns, tape.gradients


def decoupled_loss(
    images: ArrayLike,
    texts: ArrayLike,
    scale: ArrayLike,
    *,
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    two_way: bool = True,
) -> Result:
    """``n_i − s_ii``, the positive left out of the denominator (Yeh et al. 2022)."""
    tape, share, _, mask = _pairs(scale, ids, weights, images=images, texts=texts)
    loss = _rows(tape, ("images", "texts"), [("images", "texts", mask)], share, decoupled=True)
    if two_way:
        loss += _rows(tape, ("images", "texts"), [("texts", "images", mask)], share, decoupled=True)
        return loss / 2, {name: grad / 2 for name, grad in tape.gradients.items()}
    return loss, tape.gradients


def gte_loss(
    queries: ArrayLike,
    keys: ArrayLike,
    scale: ArrayLike,
    *,
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Result:
    """One denominator: query→key, key→query, query–query, key–key; the positive once."""
    tape, share, _, mask = _pairs(scale, ids, weights, queries=queries, keys=keys)
    blocks = [(left, right, mask) for left in ("queries", "keys") for right in ("queries", "keys")]
    return _rows(tape, ("queries", "keys"), blocks, share), tape.gradients


def nt_xent(
    view_a: ArrayLike,
    view_b: ArrayLike,
    scale: ArrayLike,
    *,
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Result:
    """SimCLR: among the 2B views, each one finds its other view; itself is no candidate."""
    tape, share, _, mask = _pairs(scale, ids, weights, view_a=view_a, view_b=view_b)
    loss = 0.0
    for one, other in (("view_a", "view_b"), ("view_b", "view_a")):
        loss += _rows(tape, (one, other), [(one, other, mask), (one, one, mask)], share / 2)
    return loss, tape.gradients


def sigmoid_loss(
    images: ArrayLike,
    texts: ArrayLike,
    scale: ArrayLike,
    bias: ArrayLike,
    *,
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    multi_positive: bool = False,
) -> Result:
    """SigLIP: ``(1/B) Σ_ij softplus(−z_ij (s_ij + b))``; entry weight ``½ (w_i + w_j)``.

    Entries of the same content off the diagonal are left out, or positives (``multi_positive``).
    """
    tape, share, exists, mask = _pairs(scale, ids, weights, images=images, texts=texts)
    positive = np.diag(exists)
    if multi_positive:
        positive = positive | (same_content(ids, ids) & exists[:, None] & exists[None, :])
    z = np.where(positive, 1.0, -1.0)
    entry = np.where(mask | positive, (share[:, None] + share[None, :]) / 2, 0.0)
    x = z * (tape.logits("images", "texts") + float(_f64(bias)))
    grad = -entry * z * _sigmoid(-x)
    tape.pull("images", "texts", grad)
    tape.gradients["bias"] = grad.sum()
    return float((entry * _softplus(-x)).sum()), tape.gradients


def multi_positive_loss(
    images: ArrayLike,
    texts: ArrayLike,
    scale: ArrayLike,
    *,
    ids: ArrayLike | None,
    weights: ArrayLike | None = None,
    two_way: bool = True,
) -> Result:
    """``−mean_{p ∈ P(i)} (s_ip − logsumexp_j s_ij)`` (SupCon, the mean outside the log).

    P(i): the own pair and every column of the same content. ``two_way`` averages with columns.
    """
    tape, share, exists, negative = _pairs(scale, ids, weights, images=images, texts=texts)
    there = exists[:, None] & exists[None, :]
    positive = there & ~negative
    loss = 0.0
    sides = [("images", "texts"), ("texts", "images")] if two_way else [("images", "texts")]
    for left, right in sides:
        logits = np.where(there, tape.logits(left, right), -np.inf)
        part = share[:, None] * positive / np.maximum(positive.sum(1, keepdims=True), 1)
        grad = np.zeros_like(logits)
        for i, p in zip(*np.nonzero(positive), strict=True):
            others = logits[i].copy()
            others[p] = -np.inf
            gap = _logsumexp(others) - logits[i, p]
            slope = part[i, p] * _sigmoid(gap)
            loss += float(part[i, p] * _softplus(gap)) / len(sides)
            grad[i] += slope * _softmax(others)
            grad[i, p] -= slope
        tape.pull(left, right, grad / len(sides))
    return loss, tape.gradients


def triplet_loss(
    anchors: ArrayLike,
    positives: ArrayLike,
    negatives: ArrayLike | None = None,
    *,
    margin: float = 1.0,
    mining: str = "given",
    ids: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Result:
    """``max(0, ‖a_i − p_i‖ − ‖a_i − n‖ + margin)``; where two points meet, zero gradient.

    ``given``: mean over the k negatives of each anchor, ``[batch, dim]`` or ``[batch, k, dim]``.
    ``batch_hard``: the nearest of the other positives. ``batch_all``: the mean over all triplets
    with a positive loss, anchors weighted.
    """
    batch = len(np.asarray(anchors))
    share, exists = _existing(weights, batch)
    a, p = _keep(anchors, exists), _keep(positives, exists)
    if mining == "given":
        if negatives is None:
            raise ValueError("mining='given' needs negatives")
        n = np.where(exists[:, None, None], _f64(negatives).reshape(batch, -1, a.shape[1]), 0.0)
    else:
        n = np.broadcast_to(p, (batch, *p.shape))
    mask = np.broadcast_to(exists[:, None], n.shape[:2])
    if mining != "given":
        mask = mask & ~np.eye(batch, dtype=bool) & ~same_content(ids, ids) & exists[None, :]
    to_p, to_n = a - p, a[:, None] - n
    near, far = (np.sqrt((x**2).sum(-1)) for x in (to_p, to_n))
    if mining == "batch_hard":
        nearest = np.where(mask, far, np.inf).argmin(1)
        mask = mask & (np.arange(batch)[None] == nearest[:, None])
    hinge = np.where(mask, near[:, None] - far + margin, 0.0)
    active = hinge > 0
    if mining == "batch_all":
        part = share[:, None] * active
        part = part / (part.sum() or 1.0)
    else:
        part = share[:, None] * active / (n.shape[1] if mining == "given" else 1)
    unit_p = to_p / np.where(near == 0, 1.0, near)[:, None]
    unit_n = to_n / np.where(far == 0, 1.0, far)[..., None]
    d_p = -part.sum(1)[:, None] * unit_p
    d_n = part[..., None] * unit_n
    gradients = {"anchors": -d_p - d_n.sum(1), "positives": d_p}
    if mining == "given":
        gradients["negatives"] = d_n.reshape(np.shape(np.asarray(negatives)))
    else:
        gradients["positives"] = d_p + d_n.sum(0)
    return float((part * hinge).sum()), gradients


def classifier_loss(
    first: ArrayLike,
    second: ArrayLike,
    kernel: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    weights: ArrayLike | None = None,
) -> Result:
    """Sentence-BERT's softmax objective: cross-entropy of ``(u, v, |u − v|) · kernel + bias``."""
    share, exists = _existing(weights, len(np.asarray(first)))
    u, v, w = _keep(first, exists), _keep(second, exists), _f64(kernel)
    features = np.concatenate([u, v, np.abs(u - v)], axis=1)
    logits = features @ w + (0.0 if bias is None else _f64(bias))
    target = np.where(exists, np.asarray(labels), 0)
    rows = np.arange(len(u))
    grad = _softmax(logits)
    grad[rows, target] -= 1.0
    grad *= share[:, None]
    by_u, by_v, by_gap = np.split(grad @ w.T, 3, axis=1)
    by_gap = by_gap * np.sign(u - v)
    loss = float(share @ (_logsumexp(logits) - logits[rows, target]))
    gradients = {"first": by_u + by_gap, "second": by_v - by_gap, "kernel": features.T @ grad}
    return loss, gradients | {"bias": grad.sum(0)}


# --- geometry -------------------------------------------------------------------------------------


def normalize(rows: ArrayLike) -> np.ndarray:
    """``z / ‖z‖``; a zero row stays zero."""
    z = _f64(rows)
    length = np.linalg.norm(z, axis=-1, keepdims=True)
    return z / np.where(length == 0, 1.0, length)


def through_normalize(rows: ArrayLike, gradient: ArrayLike) -> np.ndarray:
    """``dz = (I − q qᵀ) dq / ‖z‖``; 0 at a zero row."""
    z, dq = _f64(rows), _f64(gradient)
    q, length = normalize(z), np.linalg.norm(z, axis=-1, keepdims=True)
    tangent = dq - q * (q * dq).sum(-1, keepdims=True)
    return np.where(length == 0, 0.0, tangent / np.where(length == 0, 1.0, length))


def alignment(first: ArrayLike, second: ArrayLike, weights: ArrayLike | None = None) -> float:
    """``mean ‖a_i − b_i‖²`` over the pairs."""
    share, exists = _existing(weights, len(np.asarray(first)))
    return float(share @ ((_keep(first, exists) - _keep(second, exists)) ** 2).sum(1))


def uniformity(rows: ArrayLike, t: float = 2.0, weights: ArrayLike | None = None) -> float:
    """``log mean exp(−t ‖x_i − x_j‖²)`` over existing i < j."""
    _, exists = _existing(weights, len(np.asarray(rows)))
    x = _f64(rows)[exists]
    squared = ((x[:, None] - x[None]) ** 2).sum(-1)
    distinct = -t * squared[np.triu_indices(len(x), 1)]
    return float(_logsumexp(distinct) - np.log(len(distinct)))


def hardness_weights(
    queries: ArrayLike, keys: ArrayLike, scale: ArrayLike, *, ids: ArrayLike | None = None
) -> np.ndarray:
    """``A_ij``: the softmax over each row with its positive in, read at the negatives, else 0."""
    tape, _, _, mask = _pairs(scale, ids, None, queries=queries, keys=keys)
    there = mask | np.eye(len(mask), dtype=bool)
    return np.where(mask, _softmax(np.where(there, tape.logits("queries", "keys"), -np.inf)), 0.0)


def recall_at_k(scores: ArrayLike, positive: ArrayLike, k: int) -> np.ndarray:
    """Probability, row by row, that a positive is among the first k when ties are drawn at random.

    With s places left after the strictly better rivals, and of the candidates that tie with the
    best positive p positives and e rivals, ``1 − C(e, s) / C(e + p, s)``; for p = 1 ``s/(e + 1)``.
    Rows without a positive give NaN.
    """
    s, positive = _f64(scores), np.asarray(positive, bool)
    result = np.full(len(s), np.nan)
    for i in np.nonzero(positive.any(1))[0]:
        best = s[i][positive[i]].max()
        rivals = s[i][~positive[i]]
        tied = int((s[i][positive[i]] == best).sum())
        equal, places = int((rivals == best).sum()), k - int((rivals > best).sum())
        steps = np.arange(max(0, min(places, equal + 1)))
        miss = np.prod((equal - steps) / np.maximum(equal + tied - steps, 1)) if places > 0 else 1.0
        result[i] = 1.0 - miss
    return result


# --- the seed document's five ---------------------------------------------------------------------


def infonce_grad(Q: np.ndarray, P: np.ndarray, tau: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Q, P: (B, d) unnormalized. Returns (loss, dQ, dP)."""
    loss, grads = info_nce(normalize(Q), normalize(P), 1 / tau)
    return loss, through_normalize(Q, grads["queries"]), through_normalize(P, grads["keys"])


def nce_mi_estimate(S: np.ndarray) -> float:
    """``log N − InfoNCE`` in nats from critic scores S (N, N), true pairs on the diagonal.

    A lower bound on the mutual information, never above ``log N``.
    """
    s = _f64(S)
    return float(np.log(len(s)) - (_logsumexp(s) - np.diagonal(s)).mean())


def hard_negative_loss(
    Q: np.ndarray, P: np.ndarray, Nh: np.ndarray, tau: float, pos_ids: Any, neg_ids: Any
) -> float:
    """InfoNCE with hard negatives shared over the batch and false negatives left out.

    Q, P: (B, d), Nh: (B, k, d) or (M, d), unnormalized. A candidate, in the batch or among the
    hard negatives, whose id equals the query's positive id is left out; the positive never is.
    """
    loss, _ = info_nce(
        normalize(Q),
        normalize(P),
        1 / tau,
        negatives=normalize(Nh),
        key_ids=pos_ids,
        negative_ids=neg_ids,
    )
    return loss


def clip_loss_grad(
    Qn: np.ndarray, Pn: np.ndarray, t: float, max_scale: float = 100.0
) -> tuple[float, np.ndarray, np.ndarray, float]:
    """Qn, Pn: (B, d) unit rows. t: log logit scale. Returns (loss, dQn, dPn, dt).

    A ``t`` above ``log(max_scale)`` is projected first, and ``dt`` is the derivative at the
    projected value: the limit doesn't freeze the temperature.
    """
    scale = min(float(np.exp(t)), max_scale)
    loss, grads = clip_loss(Qn, Pn, scale)
    return loss, grads["images"], grads["texts"], float(scale * grads["scale"])


def alignment_uniformity(Za: np.ndarray, Zb: np.ndarray, t: float = 2.0) -> tuple[float, float]:
    """Unit rows (N, d) of two towers. Returns (alignment, uniformity averaged over the towers)."""
    return alignment(Za, Zb), (uniformity(Za, t) + uniformity(Zb, t)) / 2
