"""Which words a picture is shown with."""

import collections

import numpy as np
import pytest

from contrastive.data.captions import canonical, choose_captions
from contrastive.data.draws import example_keys
from contrastive.data.text_config import CaptionConfig
from contrastive.errors import ConfigError

N = 3000
KEYS = example_keys(0, np.arange(N))
WORDS = ["one", "two", "three", "four", "five"]


def choose(words=WORDS, n=N, **fields):
    weights = {"name": 0.0, "name_and_keywords": 0.0, "keywords": 0.0}
    config = CaptionConfig(**(weights | fields))
    return choose_captions(["bat"] * n, [words] * n, KEYS[:n], config)


def test_name_alone():
    assert set(choose(name=1.0)) == {"bat"}


def test_keywords_are_a_random_subset_in_random_order():
    chosen = [caption.split(", ") for caption in choose(keywords=1.0, most_keywords=3)]
    assert all(len(set(parts)) == len(parts) and set(parts) <= set(WORDS) for parts in chosen)
    lengths = collections.Counter(map(len, chosen))
    assert set(lengths) == {1, 2, 3}
    assert min(lengths.values()) > 0.28 * N
    first = collections.Counter(parts[0] for parts in chosen)
    assert min(first[word] for word in WORDS) > 0.17 * N
    assert len(set(map(tuple, chosen))) == 5 + 5 * 4 + 5 * 4 * 3


def test_name_and_keywords():
    chosen = choose(name_and_keywords=1.0)
    assert all(caption.startswith("bat, ") for caption in chosen)
    assert {len(caption.split(", ")) for caption in chosen} == {2, 3, 4, 5}


def test_weights_are_relative():
    chosen = choose(name=1.0, name_and_keywords=2.0, keywords=1.0)
    kinds = collections.Counter("bat" in c.split(", ") and 1 + (c != "bat") for c in chosen)
    assert abs(kinds[1] / N - 0.25) < 0.04
    assert abs(kinds[2] / N - 0.5) < 0.04


def test_without_keywords_the_name_is_taken():
    assert set(choose(words=[], keywords=1.0)) == {"bat"}
    mixed = choose_captions(["a", "b"], [[], ["x"]], KEYS[:2], CaptionConfig(name=0.0))
    assert mixed[0] == "a"
    assert "x" in mixed[1]


def test_templates():
    chosen = choose(name=1.0, templates=("a picture of {}", "{}!"), template_share=0.5)
    counts = collections.Counter(chosen)
    assert set(counts) == {"bat", "a picture of bat", "bat!"}
    assert abs(counts["bat"] / N - 0.5) < 0.04
    assert abs(counts["bat!"] / N - 0.25) < 0.04


def test_a_caption_belongs_to_the_example():
    whole = choose(n=50, name=1.0, keywords=1.0)
    config = CaptionConfig(name=1.0, name_and_keywords=0.0, keywords=1.0)
    longer = [[*WORDS], [*WORDS, "six", "seven"]]  # a neighbour with more words changes nothing
    assert choose_captions(["bat"] * 2, longer, KEYS[7:9], config)[0] == whole[7]


def test_canonical():
    forms = ["Cafe\N{COMBINING ACUTE ACCENT}  au\tLAIT ", "café au lait", "CAFÉ\u00a0au lait"]
    assert len({canonical(form) for form in forms}) == 1
    assert canonical("a") != canonical("b")


@pytest.mark.parametrize(
    "fields,sentence",
    [
        ({"name": -0.1}, "cannot be negative"),
        ({"name": 0.0, "name_and_keywords": 0.0, "keywords": 0.0}, "one has to be positive"),
        ({"most_keywords": 0}, "most_keywords = 0 has to be at least 1"),
        ({"template_share": 2.0, "templates": ("{}",)}, "template_share = 2.0"),
        ({"template_share": 0.5}, "go together"),
        ({"templates": ("{}",)}, "go together"),
        ({"templates": ("a",), "template_share": 0.5}, r"'a' has no \{\}"),
    ],
)
def test_settings_that_cannot_be(fields, sentence):
    with pytest.raises(ConfigError, match=sentence):
        CaptionConfig(**fields)
