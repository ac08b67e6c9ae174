"""Rows in fewer bytes: known values, bounds of the error, files that are read back."""

import numpy as np
import pytest

from contrastive.compression import Compressed, compress, read_rows
from contrastive.errors import ConfigError, MeasureError, UserError


def unit(n=200, dim=24, seed=0):
    rows = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_int8_cuts_the_range_of_each_entry_into_255_steps():
    rows = np.array([[0.0, -1.0, 0.5], [0.51, 1.0, 0.5], [0.102, 0.2, 0.5]], np.float32)
    found = compress(rows, "int8")
    assert found.codes.dtype == np.int8
    np.testing.assert_array_equal(found.codes[:, :2], [[-128, -128], [127, 127], [-77, 25]])
    np.testing.assert_allclose(found.low, [0.0, -1.0, 0.5])
    np.testing.assert_allclose(found.step, [0.002, 2 / 255, 1.0], rtol=1e-6)
    rows = unit()
    found = compress(rows, "int8")
    restored = found.low + (found.codes.astype(np.float32) + 128) * found.step
    assert (np.abs(restored - rows) <= found.step / 2 * 1.001).all()
    assert found.row_bytes == 24


def test_binary_keeps_signs_and_its_products_count_bits():
    rows = np.array([[1.0, -1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 1.0]], np.float32) / 3
    found = compress(rows, "binary")
    assert found.codes.tolist() == [[0b10110001, 0b10000000]]
    np.testing.assert_allclose(found.rows(), rows, rtol=1e-6)
    rows = unit()
    found = compress(rows, "binary")
    bits = np.unpackbits(found.codes, axis=1, count=24)
    differ = (bits[:, None] != bits[None]).sum(axis=2)
    np.testing.assert_allclose(found.rows() @ found.rows().T, 1 - 2 * differ / 24, atol=1e-5)
    assert found.row_bytes == 3


@pytest.mark.parametrize(
    "precision, bound", [("float32", 1e-6), ("float16", 1e-3), ("int8", 5e-3), ("binary", 0.6)]
)
@pytest.mark.parametrize("dim", [None, 16])
def test_a_file_gives_back_unit_rows(precision, bound, dim, tmp_path):
    rows = unit()
    found = compress(rows, precision, dim=dim)
    np.savez(tmp_path / "rows.npz", **found.arrays())
    got = read_rows(tmp_path / "rows.npz")
    want = rows[:, :dim] / np.linalg.norm(rows[:, :dim], axis=1, keepdims=True)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1.0, atol=1e-5)
    assert np.abs((got * want).sum(axis=1) - 1).max() < bound


def test_rows_that_do_not_vary_or_are_none():
    same = np.repeat(unit(1), 3, axis=0)
    np.testing.assert_allclose(compress(same, "int8").rows(), same, atol=1e-6)
    for precision in ("float16", "int8", "binary"):
        empty = compress(np.zeros((0, 8), np.float32), precision)
        assert isinstance(empty, Compressed)
        assert empty.rows().shape == (0, 8)


def test_what_cannot_be_is_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="the first 25 entries of rows that have 24"):
        compress(unit(), "int8", dim=25)
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "empty.npz").write_text("")
    np.save(tmp_path / "rows.npy", unit())
    np.savez(tmp_path / "flat.npz", embeddings=np.zeros(3))
    for name in ("text.npz", "empty.npz", "rows.npy", "flat.npz"):
        with pytest.raises(UserError, match="no file that contrastive embed has written"):
            read_rows(tmp_path / name)
    with pytest.raises(MeasureError, match="NaN"):
        compress(unit() * np.float32("nan"), "int8")


@pytest.mark.parametrize(
    "precision, change",
    [
        ("int8", {"low": None, "step": None}),
        ("int8", {"low": np.zeros(3, np.float32)}),
        ("int8", {"embeddings": unit()}),
        ("binary", {"embeddings": unit()}),
        ("binary", {"dim": np.array(400)}),
        ("float16", {"dim": np.array(0)}),
        ("float32", {"embeddings": np.full((2, 3), "a")}),
    ],
)
def test_codes_that_do_not_fit_are_refused(precision, change, tmp_path):
    arrays = compress(unit(), precision).arrays() | change
    np.savez(tmp_path / "rows.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(UserError, match=r"rows\.npz is damaged: it holds"):
        read_rows(tmp_path / "rows.npz")
