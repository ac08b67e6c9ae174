"""Raw-pixel naming and words in common against plain loops."""

import math

import numpy as np
import pytest

from contrastive.evaluation.baselines import raw_pixel_scores, tf_idf_scores


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


def test_words_in_common_equal_a_plain_loop():
    queries = ["The cat, the cat!", "a dog", "unknown", ""]
    texts = ["the cat sat", "The dog", "a Cat and a dog", "nothing here"]
    known = sorted({word for text in texts for word in text.lower().split()})

    def vector(text: str) -> list[float]:
        words = text.lower().replace(",", "").replace("!", "").split()
        found = []
        for word in known:
            with_it = sum(word in other.lower().split() for other in texts)
            found.append(words.count(word) * (1 + math.log((1 + len(texts)) / (1 + with_it))))
        length = math.sqrt(sum(x * x for x in found)) or 1.0
        return [x / length for x in found]

    expected = [[np.dot(vector(q), vector(t)) for t in texts] for q in queries]
    np.testing.assert_allclose(tf_idf_scores(queries, texts), expected, atol=1e-6)
    assert tf_idf_scores(queries, ["..."]).shape == (4, 1)  # no word at all
