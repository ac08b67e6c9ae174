"""Position tables at other sizes."""

import numpy as np
import pytest

from contrastive.errors import SizeError
from contrastive.towers.positions import resize_positions, weights

METHODS = ("bicubic", "bicubic_antialias", "bilinear_antialias", "bilinear_corners")


def table(rows, width=3, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@pytest.mark.parametrize("method", METHODS)
def test_C06_what_may_and_what_may_not_change(method):
    # (a) class row and 2 x 2 to 4 x 4
    old = table(5)
    new = resize_positions(old, (2, 2), (4, 4), method=method)
    assert new.shape == (17, 3)
    np.testing.assert_array_equal(new[0], old[0])
    # (b) 2 x 2 to 2 high and 3 wide, in row-major order, mirror symmetric
    flat = table(4)
    wide = resize_positions(flat, (2, 2), (2, 3), method=method).reshape(2, 3, 3)
    mirrored = flat.reshape(2, 2, 3)[:, ::-1].reshape(4, 3)
    other = resize_positions(mirrored, (2, 2), (2, 3), method=method).reshape(2, 3, 3)
    np.testing.assert_allclose(wide[:, ::-1], other, atol=1e-6)
    np.testing.assert_allclose(wide[:, 1], flat.reshape(2, 2, 3).mean(axis=1), atol=1e-6)
    # (c) the same size: the same table
    assert resize_positions(old, (2, 2), (2, 2), method=method) is old
    # (d) no class row: no row dropped
    assert resize_positions(flat, (2, 2), (3, 3), method=method).shape == (9, 3)
    # (e) 14 x 14 to 37 x 37, with and without class row
    assert resize_positions(table(197), (14, 14), (37, 37), method=method).shape == (1370, 3)
    assert resize_positions(table(196), (14, 14), (37, 37), method=method).shape == (1369, 3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("old,new", [(2, 5), (5, 2), (7, 16), (16, 7), (1, 3), (3, 1)])
def test_weights_sum_to_one_and_are_symmetric(method, old, new):
    w = weights(old, new, method)
    assert w.shape == (new, old)
    np.testing.assert_allclose(w.sum(axis=1), 1, atol=1e-12)
    if method != "bilinear_corners" or new > 1:
        np.testing.assert_allclose(w, w[::-1, ::-1], atol=1e-12)


def test_corners_stay_in_place():
    w = weights(3, 5, "bilinear_corners")
    np.testing.assert_allclose(w[[0, 2, 4]], np.eye(3))
    np.testing.assert_allclose(w[1], [0.5, 0.5, 0])


def test_a_table_without_the_grid_is_an_error():
    with pytest.raises(SizeError, match="5 rows holds no grid of 3 x 3"):
        resize_positions(table(5), (3, 3), (4, 4))
