"""Gradient caching: encoders in microbatches, the loss on the whole batch.

A contrastive loss needs every row of the batch at once, an encoder does not. :func:`encode_rows`
runs an encoder in k chunks, one after another, and forgets what each chunk computed on the way to
its rows; the backward pass computes a chunk again when its gradient is due. Automatic
differentiation of that is GradCache (Gao et al. 2021, https://arxiv.org/abs/2101.06983), exact in
every gradient. It costs one more forward pass: at most 4/3 of the time. What it saves is memory:
the activations of one chunk instead of those of the batch.

This is not gradient accumulation, which averages the losses of small batches and is another
objective: the rows of one microbatch never become the negatives of another
(``optimizer.accumulate``).
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Shaped

from contrastive.errors import ConfigError
from contrastive.towers import sharding

Encode = Callable[[Any, Array, Array], Array]
"""``(parameters, inputs [rows, ...], row numbers [rows]) -> embeddings [rows, dim]``."""


def encode_rows(
    encode: Encode,
    parameters: Any,
    inputs: Shaped[Array, "batch ..."],
    microbatches: int = 1,
) -> Float[Array, "batch dim"]:
    """The rows of ``encode`` for the whole batch, computed ``microbatches`` chunks at a time.

    On a mesh every chunk lies on all devices: each contributes ``rows / (devices · microbatches)``
    of its own rows, so no row moves between them. Each device adds up the gradients of its chunks,
    and the sum over replicas comes once, at the end; with FSDP the gradients of a chunk are
    scattered over the devices that share a parameter, whose sum of the parts comes once as well.
    (With tensor parallelism every chunk's gradient is summed: the loop runs under the compiler's
    own partitioning, which has no array that is yet to be summed.) Row numbers are those of the
    global batch: an encoder that draws its dropout from them draws the same masks in any number of
    chunks.

    Args:
      encode: Computes each row from its input and its number alone.
      parameters: Pytree of all other arrays that ``encode`` uses, keys included.
      inputs: The encoder's input.
      microbatches: How many chunks; 1 calls ``encode`` once and keeps its activations.

    Raises:
      ConfigError: The rows of a device do not divide into the chunks.
    """
    numbers = jnp.arange(inputs.shape[0], dtype=jnp.int32)
    layout = _row_axes(inputs)
    if layout is not None:
        numbers = jax.sharding.reshard(numbers, _cut(layout, 0, 1))
    if microbatches == 1:
        return encode(parameters, inputs, numbers)
    check_microbatches(inputs.shape[0], microbatches, 1 if layout is None else _parts(layout))
    chunks = functools.partial(_in_chunks, encode, microbatches)
    return sharding.summed_once(chunks, parameters, inputs, numbers)


def _in_chunks(encode: Encode, k: int, parameters: Any, inputs: Array, numbers: Array) -> Array:
    layout = _row_axes(inputs)
    parts = 1 if layout is None else _parts(layout)
    # Inside a scan nothing can merge the second computation with the first.
    chunk = jax.checkpoint(lambda x, rows: encode(parameters, x, rows), prevent_cse=False)
    chunks = tuple(_split(x, k, parts, layout) for x in (inputs, numbers))
    _, rows = jax.lax.scan(lambda _, c: (None, chunk(*c)), None, chunks)
    return _join(rows, parts, layout)


def check_microbatches(batch_size: int, microbatches: int, parts: int) -> None:
    """Raises :class:`ConfigError` unless each of ``parts`` devices can cut its rows evenly."""
    if batch_size % (parts * microbatches):
        raise ConfigError(
            f"config.train.microbatches = {microbatches} does not divide the "
            f"{batch_size / parts:g} rows that each of {parts} device(s) holds of "
            f"config.batch_size = {batch_size}; the batch has to be a multiple of "
            f"{parts * microbatches}."
        )


def _row_axes(x: Array) -> NamedSharding | None:
    """How the rows lie where types say so; None without a mesh or with Auto axes."""
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or sharding.spec[0] is None:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0]))


def _parts(layout: NamedSharding) -> int:
    axes = layout.spec[0]
    axes = axes if isinstance(axes, tuple) else (axes,)
    return math.prod(layout.mesh.shape[axis] for axis in axes)


def _cut(layout: NamedSharding, dimension: int, ndim: int) -> NamedSharding:
    spec: list = [None] * ndim
    spec[dimension] = layout.spec[0]
    return NamedSharding(layout.mesh, PartitionSpec(*spec))


def _reshape(x: Array, shape: tuple[int, ...], dimension: int, layout: NamedSharding | None):
    out = None if layout is None else _cut(layout, dimension, len(shape))
    return jax.lax.reshape(x, shape, out_sharding=out)


def _split(x: Array, k: int, parts: int, layout: NamedSharding | None) -> Array:
    """``[batch, ...]`` to ``[k, batch / k, ...]``; chunk i holds the i-th k-th of each part."""
    rest, rows = x.shape[1:], x.shape[0] // (parts * k)
    y = _reshape(x, (parts, k, rows, *rest), 0, layout)
    return _reshape(jnp.swapaxes(y, 0, 1), (k, parts * rows, *rest), 1, layout)


def _join(y: Array, parts: int, layout: NamedSharding | None) -> Array:
    """The inverse of :func:`_split`."""
    k, rest = y.shape[0], y.shape[2:]
    rows = y.shape[1] // parts
    y = _reshape(y, (k, parts, rows, *rest), 1, layout)
    return _reshape(jnp.swapaxes(y, 0, 1), (k * parts * rows, *rest), 0, layout)
