"""Names of classes: matched by label, shipped with the package, read from files."""

import warnings

import numpy as np
import pytest

from contrastive.errors import DataError, UserError
from contrastive.evaluation.class_sets import class_set, shipped_templates
from contrastive.evaluation.zero_shot import ClassRows, templates_of


def test_D04_published_sets():
    imagenet = class_set("imagenet")
    assert len(imagenet.names) == 1000
    assert len(set(imagenet.names)) == 998  # two names stand for two classes each
    assert (imagenet.names[0], imagenet.keys[0]) == ("tench", "n01440764")
    assert len(templates_of(imagenet.templates)) == 80
    assert len(class_set("cifar100").names) == 100
    assert sorted(class_set("cifar100").names) == list(class_set("cifar100").names)
    assert class_set("fashion_mnist").names[9] == "ankle boot"
    for templates in shipped_templates().values():
        assert all(template.count("{}") == 1 for template in templates)


def test_variants_of_imagenet_keep_its_numbers():
    """ImageNet-A and -R hold 200 classes each; V2 names its folders 0 … 999, not in text order."""
    whole = class_set("imagenet")
    for name in ("imagenet_a", "imagenet_r"):
        part = class_set(name)
        assert len(part.names) == 200
        for label, title, key in zip(part.labels, part.names, part.keys, strict=True):
            assert (whole.names[label], whole.keys[label]) == (title, key)
    assert len({*class_set("imagenet_a").keys} & {*class_set("imagenet_r").keys}) < 200
    assert class_set("imagenet_sketch").labels == whole.labels
    labels = class_set("imagenet_v2").labels_of(["10", "2", "999"])
    np.testing.assert_array_equal(labels, [10, 2, 999])
    np.testing.assert_array_equal(class_set("imagenet_a").labels_of(["n01498041"]), [6])
    with pytest.raises(DataError, match="none of the 200 classes of imagenet_a"):
        class_set("imagenet_a").labels_of(["n01440764"])


def test_labels_are_found_by_name_key_or_number():
    cifar = class_set("cifar10")
    np.testing.assert_array_equal(cifar.labels_of(["Cat", "3", " ship ", ""]), [3, 3, 8, -1])
    np.testing.assert_array_equal(class_set("cifar100").labels_of(["aquarium_fish"]), [1])
    with pytest.raises(DataError, match=r"'cta' is none of the 10 .* did you mean 'cat'"):
        cifar.labels_of(["cta"])
    with pytest.raises(DataError, match=r"nor a key\. --classes takes"):
        cifar.labels_of(["zzzzzz"])


def test_a_number_that_is_another_classs_name_is_not_guessed(tmp_path):
    (tmp_path / "houses.txt").write_text("1\n2\n3\n")
    with pytest.raises(DataError, match="'1' is the number of one class of houses and the name"):
        class_set(str(tmp_path / "houses.txt")).labels_of(["1"])
    (tmp_path / "digits.txt").write_text("0\n1\n2\n")
    assert class_set(str(tmp_path / "digits.txt")).labels_of(["1"])[0] == 1
    (tmp_path / "keys.json").write_text('{"1": "1", "2": "2"}')
    assert class_set(str(tmp_path / "keys.json")).labels_of(["1"])[0] == 0


def test_D04_a_name_that_two_classes_share_does_not_tell_which():
    imagenet = class_set("imagenet")
    twice = next(name for name in imagenet.names if imagenet.names.count(name) == 2)
    with pytest.raises(DataError, match="two classes of imagenet are called"):
        imagenet.labels_of([twice])
    key = imagenet.keys[imagenet.names.index(twice)]
    assert imagenet.labels_of([key])[0] == imagenet.names.index(twice)


@pytest.mark.parametrize(
    ("name", "text", "keys"),
    [
        ("a.txt", "cat\n\ndog\n", ()),
        ("e.txt", "\ufeffcat\r\ndog\r\n", ()),
        ("f.json", '\ufeff["cat", "dog"]', ()),
        ("b.json", '["cat", "dog"]', ()),
        ("c.json", '{"x1": "cat", "x2": "dog"}', ("x1", "x2")),
        ("d.json", '{"names": ["cat", "dog"], "keys": ["x1", "x2"]}', ("x1", "x2")),
    ],
)
def test_files_of_names(tmp_path, name, text, keys):
    (tmp_path / name).write_text(text)
    found = class_set(str(tmp_path / name))
    assert (found.names, found.labels, found.keys) == (("cat", "dog"), (0, 1), keys)


def test_what_is_no_set_is_named(tmp_path):
    with pytest.raises(UserError, match="did you mean 'imagenet'"):
        class_set("imagenets")
    with pytest.raises(UserError, match="there is no file"):
        class_set(str(tmp_path / "x.txt"))
    for name, text, message in (
        ("x.txt", "\n", "names no classes"),
        ("x.json", "{", "is not JSON"),
        ("x.json", "[1, 2]", "expected a list of names"),
        ("x.json", '{"names": ["a"], "keys": ["b", "c"]}', "1 names and 2 keys"),
        ("x.json", '{"names": "cat"}', "expected a list of names"),
        ("x.json", '{"names": 5}', "expected a list of names"),
        ("x.json", '{"names": ["a"], "keys": [1]}', "expected a list of names"),
        ("x.json", "5", "expected a list of names"),
        ("x.json", "[" * 100_000, "is not JSON"),
        ("x.json", '{"names": ["a", "b"], "keys": ["k", "k"]}', "have the key 'k'"),
        ("x.txt", "caf\xe9\n", "is not UTF-8"),
    ):
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(DataError, match=message):
            class_set(str(tmp_path / name))


def test_templates_by_name_or_file(tmp_path):
    assert templates_of("plain") == ("{}",)
    assert len(templates_of("cifar10")) == 18
    (tmp_path / "mine.txt").write_text("\ufeffa {}\r\nthe {}.\n")
    assert templates_of(str(tmp_path / "mine.txt")) == ("a {}", "the {}.")
    (tmp_path / "bad.txt").write_text("a cat\n")
    with pytest.raises(DataError, match="every line needs"):
        templates_of(str(tmp_path / "bad.txt"))
    with pytest.raises(UserError, match="is no set of templates"):
        templates_of("imagenet")


class Counted:
    """An encoder that keeps what it was asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts) -> np.ndarray:
        self.texts += texts
        seeds = [sum(map(ord, text)) for text in texts]
        rows = np.stack([np.random.default_rng(seed).normal(size=8) for seed in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_the_rows_of_a_class_are_computed_once():
    encode = Counted()
    rows = ClassRows(encode)
    a, b = class_set("imagenet_a"), class_set("imagenet_r")
    prompts = ("{}", "a {}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, first = rows(a.named, prompts)
        count = len(encode.texts)
        assert count == 2 * len(set(a.names))
        _, second = rows(b.named, prompts)
    shared = set(a.names) & set(b.names)
    assert len(encode.texts) == count + 2 * (len(set(b.names)) - len(shared))
    name = next(iter(shared))
    np.testing.assert_array_equal(first[a.names.index(name)], second[b.names.index(name)])


def test_prompts_take_the_form_of_a_family_of_models():
    for form, wanted in (
        (None, "A photo of a T-Shirt."),
        ("clip", "a photo of a t-shirt."),
        ("siglip", "a photo of a tshirt"),
        ("siglip2", "a photo of a t-shirt."),
    ):
        encode = Counted()
        ClassRows(encode, form)(["T-Shirt"], ("A photo of a {}.",))
        assert encode.texts == [wanted]
