"""Position tables at other sizes than they were learned for.

A table is ``[rows of a grid in row-major order, width]``, with rows before the grid that belong to
no place (the class token) and never change. Resizing is linear along each axis, so it is a matrix
for the rows and one for the columns, computed in float64.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float, Float64

from contrastive.errors import SizeError

Method = Literal["bicubic", "bicubic_antialias", "bilinear_antialias", "bilinear_corners"]
"""``bicubic``: PyTorch's (a = −0.75), which transformers resizes by. ``bicubic_antialias``: with
antialias (a = −0.5), as in open_clip. ``bilinear_antialias``: as NaFlex. ``bilinear_corners``: the
corners stay in place, as in big_vision."""


def sine_positions(
    rows: int, columns: int, width: int, temperature: float = 10_000.0
) -> Float[np.ndarray, "places width"]:
    """The fixed table of a grid in row-major order: sines and cosines of the column, then of the
    row, times ``temperature^(−i / (width/4 − 1))`` (MoCo v3, Chen et al. 2021,
    https://arxiv.org/abs/2104.02057; in the order of Beyer et al. 2022,
    https://arxiv.org/abs/2205.01580).

    Raises:
      SizeError: ``width`` is no multiple of 4.
    """
    if width % 4:
        raise SizeError(f"sine positions need a width that is a multiple of 4, not {width}.")
    row, column = np.indices((rows, columns)).reshape(2, -1)
    steps = max(width // 4 - 1, 1)
    frequencies = temperature ** (-np.arange(width // 4) / steps)
    angles = [place[:, None] * frequencies for place in (column, row)]
    parts = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1).astype(np.float32)


def resize_positions(
    table: Float[np.ndarray, "rows width"],
    old: tuple[int, int],
    new: tuple[int, int],
    *,
    method: Method = "bicubic",
) -> Float[np.ndarray, "rows2 width"]:
    """A table for a grid of ``new = (height, width)`` places from one for ``old``.

    Rows before the grid are taken as they are; with equal grids the table itself is returned.

    Raises:
      SizeError: The table has fewer rows than the old grid.
    """
    first = table.shape[0] - old[0] * old[1]
    if first < 0:
        raise SizeError(f"a table of {table.shape[0]} rows holds no grid of {old[0]} x {old[1]}.")
    if old == new:
        return table
    grid = table[first:].astype(np.float64).reshape(*old, -1)
    rows, columns = (weights(o, n, method) for o, n in zip(old, new, strict=True))
    grid = np.einsum("ij,kl,jlw->ikw", rows, columns, grid, optimize=True)
    resized = grid.reshape(new[0] * new[1], -1).astype(table.dtype)
    return np.concatenate([table[:first], resized])


def weights(old: int, new: int, method: Method) -> Float64[np.ndarray, "new old"]:
    """How much of each old place is in each new one, along one axis; rows sum to one."""
    if method == "bilinear_corners":
        at = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
        return np.maximum(1 - np.abs(at[:, None] - np.arange(old)), 0.0)
    scale = old / new
    at = (np.arange(new) + 0.5) * scale - 0.5
    if method == "bicubic":  # four neighbours; those beyond an edge are the edge itself
        out = np.zeros((new, old))
        base = np.floor(at).astype(int)
        for step in range(-1, 3):
            near = np.clip(base + step, 0, old - 1)
            np.add.at(out, (np.arange(new), near), _cubic(at - (base + step), -0.75))
        return out
    wide = max(scale, 1.0)
    away = (np.arange(old) - at[:, None]) / wide
    if method == "bicubic_antialias":
        # PyTorch takes the places whose middle lies within the support, and no others.
        low = np.floor(at + 0.5 - 2 * wide + 0.5)[:, None]
        high = np.floor(at + 0.5 + 2 * wide + 0.5)[:, None]
        out = np.where((np.arange(old) >= low) & (np.arange(old) < high), _cubic(away, -0.5), 0.0)
    else:
        out = np.maximum(1 - np.abs(away), 0.0)
    return out / out.sum(axis=1, keepdims=True)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
