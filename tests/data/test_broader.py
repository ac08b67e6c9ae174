"""Broader terms behind the words of a text."""

import dataclasses
import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrastive.data import broader
from contrastive.data.broader import with_broader_terms
from contrastive.data.config import DataConfig
from contrastive.data.text_config import TokenizerConfig
from contrastive.data.tokenizer import read_tokenizer, train_tokenizer
from contrastive.errors import ConfigError, DataError
from contrastive.warm_start import _check_texts
from experiments.data import broader_terms

CONFIG = TokenizerConfig(kind="words", broader=12)


def terms(text: str, most: int = 12) -> list[str]:
    found = with_broader_terms(text, most)
    assert found.startswith(text)
    return found[len(text) :].split()


def test_the_nearest_terms_come_first_and_at_most_so_many():
    assert terms("zebra", 4) == ["equine", "odd_toed_ungulate", "ungulate", "placental"]
    assert terms("zebra")[:4] == terms("zebra", 4)
    assert {"mammal", "animal"} <= set(terms("zebra"))
    assert terms("automobile", 1) == ["car", "auto", "motor_vehicle"]  # synonyms are more
    assert terms("automobile", 0) == []


def test_the_longest_entry_counts():
    assert "motor_vehicle" in terms("the police car")
    assert terms("the police car") == terms("police car")
    assert "social_group" in terms("police")  # not where "police car" is meant


def test_forms_of_verbs():
    assert "facial_expression" in terms("smiling")
    assert terms("swam")[0] == terms("swimming")[0] == "swim"
    assert "fish" not in terms("pouting")  # of to pout, not of an eelpout


def test_plurals_that_are_words_too():
    assert terms("hands")[:1] == ["hand"]  # and no custody
    assert terms("eyes")[:1] == ["eye"]  # and no opinion
    assert terms("men")[:1] == ["man"]  # and no workforce
    assert "optical_instrument" in terms("glasses")  # a thing, as glass is
    assert terms("women") == ["woman", *terms("woman")]


def test_joints_and_breaks():
    assert "plaything" in terms("jack-in-the-box")
    assert terms("hot-dog") == terms("hot dog")
    assert "bread" not in terms("hot: dog")
    assert terms("a woman’s") == terms("woman")  # and no second


def test_the_broadest_are_last():
    both = terms("zebra and police car")
    assert both.index("equine") < both.index("vehicle") < both.index("living_thing")


def test_plurals_capitals_and_commas():
    assert terms("Zebra") == terms("zebra")
    assert terms("zebras") == ["zebra", *terms("zebra")]
    assert terms("mice") == ["mouse", *terms("mouse")]
    assert terms("strips") != terms("striped")
    both = terms("fox, apple")
    assert set(both) == set(terms("fox")) | set(terms("apple"))
    assert len(both) == len(set(both))


def test_names_count_where_there_is_no_such_word():
    assert terms("Japan")[0] == "lacquerware"
    assert "mountain" in terms("mount fuji")


def test_words_that_stand_in_the_text_are_not_said_again():
    assert "animal" not in terms("zebra, animal")
    assert "vehicle" not in terms("vehicle")


@pytest.mark.parametrize("text", ["", "   ", ",", "☂ !?", "in a", "qwxyz", "\udc80", "_", "__ _"])
def test_texts_without_things_have_no_terms(text):
    assert terms(text) == []


@given(st.text(max_size=40), st.integers(1, 20))
def test_any_text_stays_as_it_is(text, most):
    once = with_broader_terms(text, most)
    assert once.startswith(text)
    added = once[len(text) :].split()
    assert len(added) == len(set(added))
    assert added == [term for term in added if term == term.lower() and term != text]


def test_a_word_that_training_never_saw_has_known_tokens(tmp_path):
    names = ["horse", "apple", "house", "tiger face"]
    plain = train_tokenizer(names, length=16, config=TokenizerConfig(kind="words"))
    broad = train_tokenizer(names, length=16, config=CONFIG)
    zebra, unknown = (t.without_markers(t.encode(["zebra"])[0]) for t in (broad, plain))
    assert unknown == [plain.unknown_id]
    known = {broad.backend.id_to_token(i) for i in zebra if i != broad.unknown_id}
    assert {"equine", "mammal", "animal"} <= known
    horse, house = (set(broad.encode([word])[0]) for word in ("horse", "house"))
    assert len(set(zebra) & horse) > len(set(zebra) & house)
    broad.save(tmp_path / "tokenizer.json")
    again = read_tokenizer(tmp_path / "tokenizer.json", length=16, config=CONFIG)
    np.testing.assert_array_equal(
        again.encode(["zebra crossing"]), broad.encode(["zebra crossing"])
    )
    with pytest.raises(DataError, match="surrogate pair"):
        broad.encode(["horse \udc80"])


def test_a_prefix_takes_its_own_room_and_not_that_of_its_terms():
    tokenizer = train_tokenizer(["photo of a horse"], length=6, config=CONFIG)
    prefixed = DataConfig(text_length=6, pairs="texts", source="x.csv", query_prefix="a photo: ")
    tokenizer.check_room(prefixed)  # three ids, one is left
    with pytest.raises(ConfigError, match="leave no room for text"):
        tokenizer.check_room(dataclasses.replace(prefixed, query_prefix="a photo of: "))


_WHOLE = gzip.compress(b"a\t\ta\n", mtime=0)


@pytest.mark.parametrize(
    "content", [b"", b"version https://", _WHOLE[:-9]], ids=["empty", "pointer", "cut"]
)
def test_a_damaged_list_is_named(content, tmp_path, monkeypatch):
    folder = tmp_path / "vocabularies"
    folder.mkdir()
    (folder / broader.FILE).write_bytes(content)
    monkeypatch.setattr(broader.importlib.resources, "files", lambda package: tmp_path)
    with pytest.raises(DataError, match=r"wordnet_broader.* install the package anew"):
        broader._senses.__wrapped__()


def test_terms_need_a_vocabulary_of_words(tmp_path):
    for other in ({"kind": "bpe"}, {"kind": "words", "path": "x.json"}, {"preset": "clip"}):
        with pytest.raises(ConfigError, match=r"broader needs config\.data\.tokenizer\.kind"):
            TokenizerConfig(**{"broader": 3, **other})
    with pytest.raises(ConfigError, match="cannot be negative"):
        TokenizerConfig(kind="words", broader=-1)
    pieces = train_tokenizer(["a horse"], length=8, config=TokenizerConfig())
    pieces.save(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match="needs a vocabulary of whole words"):
        read_tokenizer(tmp_path / "tokenizer.json", length=8, config=CONFIG)


def test_a_warm_start_reads_texts_as_before(tmp_path):
    before, now = (
        train_tokenizer(["horse"], length=8, config=TokenizerConfig(kind="words", broader=most))
        for most in (0, 3)
    )
    with pytest.raises(ConfigError, match=r"set config\.data\.tokenizer\.broader = 0"):
        _check_texts(tmp_path, before, now)
    _check_texts(tmp_path, now, now)


SENSES = """\
  1 the licence
00000001 03 n 01 entity 0 000 | all
00000002 03 n 01 physical_entity 0 001 @ 00000001 n 0000 | has a body
00000003 03 n 03 animal 0 beast 0 quick 0 001 @ 00000002 n 0000 | moves
00000004 03 n 01 ram 0 001 @ 00000003 n 0000 | a male sheep
00000005 03 n 01 idea 0 001 @ 00000001 n 0000 | has none
00000006 03 n 03 ram 0 plan 0 quick 0 001 @ 00000005 n 0000 | made up for this test
00000007 03 n 02 Solo 0 Ram 1 001 @i 00000003 n 0000 | somebody
"""
COUNTS = """\
ram%1:03:00:: 1 9
quick%1:03:00:: 2 2
quick%3:00:00:: 1 5
"""
VERBS = """\
00000001 29 v 01 move 0 001 @ 00000002 v 0000 01 + 02 00 | made up
00000002 29 v 02 push 0 ram 0 001 @ 00000001 v 0000 01 + 02 00 | a circle
"""
INDEX = """\
  1 the licence
animal n 1 0 1 0 00000003
beast n 1 0 1 0 00000003
plan n 1 0 1 0 00000006
quick n 2 0 2 0 00000003 00000006
ram n 3 1 @ 3 0 00000006 00000007 00000004
solo n 1 0 1 0 00000007
"""


def test_the_list_holds_the_sense_that_a_picture_shows(tmp_path):
    (tmp_path / "data.noun").write_text(SENSES)
    (tmp_path / "index.noun").write_text(INDEX)
    (tmp_path / "data.verb").write_text(VERBS)
    (tmp_path / "index.verb").write_text("move v 1 0 1 0 00000001\nram v 1 0 1 0 00000002\n")
    (tmp_path / "noun.exc").write_text("beeves beast\nrams ram\nunheard unknown\n")
    (tmp_path / "verb.exc").write_text("moven move\n")
    (tmp_path / "cntlist.rev").write_text(COUNTS)
    found = broader_terms.senses(tmp_path)
    known = broader_terms.chosen(tmp_path, found)
    # A thing before an idea that is more frequent, but not of what is mostly an adjective.
    animals = dict.fromkeys(("animal", "beast"), "noun.00000003")
    moves = dict.fromkeys(("move", "moving", "moved", "moven"), "verb.00000001")
    forms = {"beeves": "noun.00000003", "rams": "noun.00000004"}
    others = {"plan": "noun.00000006", "ram": "noun.00000004", "quick": "noun.00000006"}
    others["solo"] = "noun.00000007"
    assert known == animals | others | moves | forms
    assert broader_terms.lines(found, known) == [
        "entity\t\t\n",
        "physical_entity\t0\t\n",
        "animal beast quick\t1\tanimal beast beeves\n",
        "ram\t2\tram rams\n",
        "idea\t0\t\n",
        "ram plan quick\t4\tplan quick\n",
        "solo ram\t2\tsolo\n",
        "push ram\t\t\n",
        "move\t7\tmove moven moving moved\n",
    ]
