"""Raw-pixel naming against a plain loop."""

import numpy as np
import pytest

from contrastive.evaluation.baselines import raw_pixel_scores


def test_raw_pixel_scores_equal_a_plain_loop():
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (5, 4, 4, 3), np.uint8)
    known = rng.integers(0, 256, (9, 4, 4, 3), np.uint8)
    known_labels = np.array([3, 3, 8, 8, 8, 5, 1, 1, 5])
    labels = np.array([8, 2, 1, 3])  # 2 has no training picture; 5 is not asked for
    got = raw_pixel_scores(pictures, known, known_labels, labels, block=2)
    for i, picture in enumerate(pictures):
        for j, label in enumerate(labels):
            distances = [
                np.sum((picture / 255.0 - other / 255.0) ** 2)
                for other, its in zip(known, known_labels, strict=True)
                if its == label
            ]
            expected = -min(distances, default=np.inf)
            assert got[i, j] == pytest.approx(expected, rel=1e-4)


def test_a_picture_is_nearest_to_itself():
    known = np.random.default_rng(1).integers(0, 256, (6, 8, 8, 3), np.uint8)
    scores = raw_pixel_scores(known, known, np.arange(6), np.arange(6))
    np.testing.assert_array_equal(scores.argmax(axis=1), np.arange(6))


def test_labels_without_any_training_picture():
    pictures = np.zeros((2, 4, 4, 3), np.uint8)
    assert np.isneginf(raw_pixel_scores(pictures, pictures, np.arange(2), np.array([7]))).all()
    with pytest.raises(ValueError, match="not distinct"):
        raw_pixel_scores(pictures, pictures, np.arange(2), np.array([1, 1]))
