"""``softmax(q·kᵀ/√head_dim)·v`` through ``jax.nn.dot_product_attention``, by one of its two
implementations: XLA's, which holds the matrix of weights ``[batch, heads, queries, keys]``, or
cuDNN's flash attention (Dao et al. 2022, https://arxiv.org/abs/2205.14135), which does not."""

import importlib
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

Kind = Literal["xla", "flash"]
LARGEST_HEAD = 128
"""Entries of a head that the flash implementation takes on every GPU that has it."""


def attend(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    *,
    mask: Bool[Array, "batch #queries keys"] | None = None,
    causal: bool = False,
    kind: Kind = "xla",
) -> Float[Array, "batch queries heads head_dim"]:
    """Attends where ``mask`` holds and, if ``causal``, not ahead.

    ``flash`` is cuDNN's where the program is compiled for a GPU, and XLA's on other platforms and
    where JAX was installed without cuDNN. It computes in bfloat16 or float16 only.

    Raises:
      ValueError: ``flash``, and the inputs are float32, or a head has more than 128 entries or no
        multiple of 8.
    """

    def plain(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        with jax.numpy_dtype_promotion("standard"):  # JAX mixes bfloat16 and float32 inside
            return jax.nn.dot_product_attention(
                q, k, v, mask=None if mask is None else mask[:, None], is_causal=causal
            )

    if kind == "xla":
        return plain(q, k, v, mask)
    if q.dtype.itemsize > 2 or q.shape[-1] % 8 or q.shape[-1] > LARGEST_HEAD:
        raise ValueError(
            f"attention = 'flash' takes bfloat16 and heads of a multiple of 8 and at most "
            f"{LARGEST_HEAD} entries; given are {q.dtype.name} and {q.shape[-1]}."
        )
    if not has_flash():
        return plain(q, k, v, mask)

    def flash(q: Array, k: Array, v: Array, mask: Array | None) -> Array:
        return _flash(q, k, v, mask, causal)

    return lax.platform_dependent(q, k, v, mask, cuda=flash, default=plain)


def has_flash() -> bool:
    """Whether JAX was installed with cuDNN, which tracing its attention asks for."""
    for name in ("jax_cuda13_plugin", "jax_cuda12_plugin"):
        try:
            return bool(importlib.import_module(f"{name}._versions").cudnn_get_version())
        except Exception:  # not there, or its libraries are not
            continue
    return False


def _flash(q: Array, k: Array, v: Array, mask: Array | None, causal: bool) -> Array:
    """cuDNN's gradient takes a mask only for even lengths: odd ones get one more place that nothing
    attends to."""
    length = q.shape[1]
    if mask is not None:
        queries, keys = length % 2, k.shape[1] % 2
        q = jnp.pad(q, ((0, 0), (0, queries), (0, 0), (0, 0)))
        k, v = (jnp.pad(x, ((0, 0), (0, keys), (0, 0), (0, 0))) for x in (k, v))
        wide = jnp.broadcast_to(mask, (mask.shape[0], length, mask.shape[2]))
        mask = jnp.pad(wide, ((0, 0), (0, queries), (0, keys)))[:, None]
    with jax.numpy_dtype_promotion("standard"):
        y = jax.nn.dot_product_attention(
            q, k, v, mask=mask, is_causal=causal, implementation="cudnn"
        )
    return y[:, :length]
