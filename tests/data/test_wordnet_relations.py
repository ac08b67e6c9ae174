"""WordNet's relations as pairs: labels that no single text tells, and no sense on both sides."""

from collections import Counter

from experiments.data.wordnet_relations import Link, Relations, labelled, links, triplets


def world():
    """400 adjectives in clusters of four: two opposite heads, each with one near to it; and nouns
    of two words, which have no opposite."""
    words = {f"adj.{i:08}": [f"w{i}", f"v{i}"] for i in range(400)}
    found = []
    for i in range(0, 400, 4):
        a, b, near_a, near_b = (f"adj.{i + j:08}" for j in range(4))
        found += [Link("!", a, 0, b, 1), Link("!", b, 1, a, 0)]
        found += [Link("&", near_a, None, a, None), Link("&", near_b, None, b, None)]
        if i:
            found.append(Link("@", a, None, f"adj.{i - 4:08}", None))
    words |= {f"noun.{i:08}": [f"n{i}", f"m{i}"] for i in range(9)}
    return Relations(words, found), {key: f"d {key}" for key in words}


def test_labels_are_as_many_and_no_sense_is_on_both_sides():
    relations, definitions = world()
    rows = labelled(relations, definitions)
    counts = Counter((row["split"], row["label"]) for row in rows)
    for split in ("train", "validation"):
        assert len({counts[split, label] for label in ("similar", "opposite", "unrelated")}) == 1
    senses = {"train": set(), "validation": set()}
    for row in rows:
        _, *pair = row["key"].split(".")
        senses[row["split"]] |= {pair[1], pair[4]}
    assert senses["validation"]
    assert not senses["train"] & senses["validation"]
    for split in senses:  # what texts come second, and first, says nothing of being unrelated
        of = {label: {r["positive"] for r in rows if (r["split"], r["label"]) == (split, label)}
              for label in ("similar", "opposite", "unrelated")}  # fmt: skip
        assert of["unrelated"] <= of["similar"] | of["opposite"]
    assert labelled(*world()) == rows


def test_opposites_are_words_and_reach_what_is_near_to_them():
    relations, definitions = world()
    pairs = {(p.source, p.word, p.target, p.other) for p in relations.opposite}
    assert ("adj.00000000", 0, "adj.00000001", 1) in pairs
    assert ("adj.00000002", 0, "adj.00000001", 1) in pairs  # near to the first
    related = {(p.source, p.target) for p in (*relations.similar, *relations.opposite)}
    for row in labelled(relations, definitions):
        _, _, first, _, _, second, _ = row["key"].split(".")
        if row["label"] == "unrelated":
            assert (f"adj.{first}", f"adj.{second}") not in related


def test_triplets_hold_opposites_and_never_the_similar_word():
    relations, definitions = world()
    rows = {row["key"]: row for row in triplets(relations, definitions)}
    assert "v1" in rows["adj.00000000"]["negatives"]
    for row in rows.values():
        assert row["positive"] not in row["negatives"]
    words = {p.source: set() for p in relations.opposite}
    for p in relations.opposite:
        words[p.source].add(relations.words[p.target][p.other])
    antonyms = {row["key"]: row for row in triplets(relations, definitions, unrelated=0)}
    assert set(antonyms) == set(rows) & set(words) != set(rows)
    for key, row in antonyms.items():
        assert set(row["negatives"]) <= words[key]
        assert row | {"negatives": []} == rows[key] | {"negatives": []}


def test_pointers_are_read_as_they_are_written(tmp_path):
    lines = (
        "  1 licence\n00000010 00 a 02 dark 0 dim 1 002 ! 00000020 a 0201 & 00000030 a 0000 | no\n"
    )
    for part in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{part}").write_text(lines if part == "adj" else "  1 licence\n")
    assert list(links(tmp_path)) == [
        Link("!", "adj.00000010", 1, "adj.00000020", 0),
        Link("&", "adj.00000010", None, "adj.00000030", None),
    ]
