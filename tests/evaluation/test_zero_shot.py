"""Class embeddings, accuracy by label id, small and odd class sets."""

import warnings

import numpy as np
import pytest

from contrastive.evaluation.zero_shot import (
    TEMPLATES,
    ClassRows,
    classification_metrics,
    score_metrics,
)


def encode_by_words(texts) -> np.ndarray:
    """A bag of hashed words, as unit rows: enough of a text tower for these tests."""
    rows = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in text.split():
            row[sum(map(ord, word)) % 64] += 1
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_class_embedding_is_the_normalised_mean_of_normalised_prompts():
    names, templates = ["cat", "red dog"], ("{}", "a photo of a {}")
    labels, rows = ClassRows(encode_by_words)(names, templates)
    np.testing.assert_array_equal(labels, [0, 1])
    mean = (encode_by_words(["red dog"]) + encode_by_words(["a photo of a red dog"]))[0] / 2
    np.testing.assert_allclose(rows[1], mean / np.linalg.norm(mean), rtol=1e-6)


def test_D04_names_are_matched_by_label_id():
    names = {4: "cat", 0: "dog", 2: "bird", 9: "fish", 7: "frog"}
    images = encode_by_words([names[label] for label in (0, 2, 4, 7, 9)])
    wanted = np.array([0, 2, 4, 7, 0])  # the last picture shows a fish and is labelled a dog
    results = []
    for order in ([4, 0, 2, 9, 7], [9, 7, 4, 2, 0]):
        shuffled = {label: names[label] for label in order}
        labels, rows = ClassRows(encode_by_words)(shuffled, TEMPLATES["plain"])
        results.append(classification_metrics(images, wanted, labels, rows))
    assert results[0] == results[1]
    assert results[0]["top1"] == pytest.approx(0.8)


def test_D04_duplicate_names_give_one_warning_that_names_both_indices():
    names = ["missile", "crane", "missile", "sunglasses", "AnnualCrop", "sunglasses"]
    with pytest.warns(UserWarning, match="twice") as caught:
        labels, rows = ClassRows(encode_by_words)(names, ("{}",))
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "'missile' (labels 0 and 2)" in message
    assert "'sunglasses' (labels 3 and 5)" in message
    assert "'AnnualCrop' (label 4; 'annual crop'?)" in message
    # What cannot be told apart shares the credit.
    got = classification_metrics(encode_by_words(["missile"]), np.array([2]), labels, rows)
    assert got["top1"] == pytest.approx(0.5)


def test_D04_sizes_are_recorded():
    labels, rows = ClassRows(encode_by_words)(["cat", "dog"], ("{}",))
    results = classification_metrics(encode_by_words(["dog"] * 3), np.ones(3, int), labels, rows)
    assert (results["images"], results["classes"]) == (3, 2)


def test_D05_top5_is_left_out_where_there_are_fewer_classes():
    scores = np.array([[3.0, 2, 1], [1, 2, 3], [1, 3, 2], [3, 1, 2]])
    results = score_metrics(scores, np.array([0, 2, 2, 0]), np.arange(3), top=(1, 5))
    assert results["top1"] == pytest.approx(0.75)
    assert not [name for name in results if name.startswith("top5")]
    assert results["top1_chance"] == pytest.approx(1 / 3)


def test_D05_nothing_to_classify_is_an_error():
    rows = np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match="at least one class name"):
        ClassRows(encode_by_words)([], ("{}",))
    with pytest.raises(ValueError, match="no classes"):
        classification_metrics(rows, np.array([0, 1]), np.arange(0), rows[:0])
    with pytest.raises(ValueError, match="none of the 2 pictures"):
        classification_metrics(rows, np.array([-1, -1]), np.arange(2), rows)
    with pytest.raises(ValueError, match="none of the 0 pictures"):
        classification_metrics(rows[:0], np.arange(0), np.arange(2), rows)
    with pytest.raises(ValueError, match="need one"):
        ClassRows(encode_by_words)(["cat"], ("a photo",))


def test_D06_unlabelled_pictures_are_left_out():
    correct = np.array([1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1])
    scores = np.stack([correct, 1 - correct], axis=1).astype(float)
    labels = np.array([0] * 10 + [-1] * 2)
    results = score_metrics(scores, labels, np.arange(2))
    assert results["top1"] == pytest.approx(0.7)
    assert results["images"] == 10


def test_mean_per_class_ignores_classes_without_pictures():
    scores = np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]])
    results = score_metrics(scores, np.array([0, 0, 1, 1]), np.arange(3))
    assert results["top1"] == pytest.approx(0.75)
    assert results["mean_per_class"] == pytest.approx((1 + 0.5) / 2)
    assert results["top1_majority"] == pytest.approx(0.5)


def test_template_sets_are_usable():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for templates in TEMPLATES.values():
            ClassRows(encode_by_words)(["cat", "dog"], templates)
