"""WordNet 3.0 as a list of what is a kind of what; rebuilds the file that comes with the package.

    python -m experiments.data.broader_terms

Of each noun or verb one sense is kept, the one that a picture is likeliest to show: a thing that
can be seen before an idea or an action (unless the word is more often an adjective, as "red"), then
the sense that is the most frequent in the texts that WordNet's authors counted. Of names ("China")
only those are there that are no word in lower case. Each line is a sense: its first words, the
lines (from 0) of what it is a kind of, and the words that have it, forms of verbs and irregular
plurals among them.

Licence: as :mod:`experiments.data.wordnet`; the notice is in the package beside the file.
"""

import gzip
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from contrastive.data.broader import FILE, key_of, singulars, upward
from contrastive.whole import whole_file
from experiments.data.packages import arguments, debian
from experiments.data.wordnet_relations import lines_of

_KEPT = ("noun", "verb")
_PARTS = {"1": "noun", "2": "verb", "3": "adj", "4": "adv", "5": "adj"}  # of sense keys
_KIND_OF = ("@", "@i")  # a country, one of the countries
_FIRST = 3  # words of a sense, as synonyms
_THING = "physical_entity"


class Sense(NamedTuple):
    """Its words, as they are written, and the senses that it is a kind of."""

    words: list[str]
    kinds: list[str]


def senses(folder: Path) -> dict[str, Sense]:
    """The senses of nouns and verbs by part and offset, in the order of the files."""
    found = {}
    for part in _KEPT:
        for row in lines_of(folder / f"data.{part}"):
            cells = row.split(" | ", 1)[0].split(" ")
            at = 4 + 2 * int(cells[3], 16)
            links = [cells[at + 1 + 4 * i : at + 3 + 4 * i] for i in range(int(cells[at]))]
            kinds = [f"{part}.{key}" for symbol, key in links if symbol in _KIND_OF]
            found[f"{part}.{cells[0]}"] = Sense(cells[4:at:2], kinds)
    return found


def counts(folder: Path) -> dict[tuple[str, str], dict[int, int]]:
    """How often each sense (from 1) of a word occurs in the counted texts, by word and part."""
    found: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for row in lines_of(folder / "cntlist.rev"):
        key, sense, count = row.split()
        word, _, rest = key.partition("%")
        found[word, _PARTS[rest[0]]][int(sense)] = int(count)
    return found


def above(sense: str, found: Mapping[str, Sense]) -> list[str]:
    """What a sense is a kind of, the nearest first."""
    return upward(found[sense].kinds, lambda key: found[key].kinds)


def chosen(folder: Path, found: Mapping[str, Sense]) -> dict[str, str]:
    """The sense of each word and of its forms, by the spelling in which they are looked up."""
    counted = counts(folder)
    things = {key for key in found if any(_THING in found[a].words for a in above(key, found))}
    ranks: dict[str, list[tuple]] = defaultdict(list)
    of_part: dict[str, dict[str, list[tuple]]] = {part: defaultdict(list) for part in _KEPT}
    for part in _KEPT:
        for row in lines_of(folder / f"index.{part}"):
            word, *cells = row.split()
            described = sum(counted[word, "adj"].values())
            thing = sum(counted[word, "noun"].values()) >= described
            for i, offset in enumerate(cells[-int(cells[1]) :], start=1):
                key = f"{part}.{offset}"
                name, often = word not in found[key].words, counted[word, part].get(i, 0)
                rank = (name, thing and key not in things, False, -often, part, i, key)
                of_part[part][word].append(rank)
                ranks[key_of(word)].append(rank)
    for part, form, word in inflected(folder, of_part):
        # A plural that is a word of its own ("glasses") stays one where both are things.
        plural = part == "noun"
        ranks[key_of(form)] += [(*rank[:2], plural, *rank[3:]) for rank in of_part[part][word]]
    return {word: min(senses)[-1] for word, senses in ranks.items()}


def inflected(
    folder: Path, words: Mapping[str, Mapping[str, object]]
) -> Iterator[tuple[str, str, str]]:
    """Part, form and word: irregular forms, forms of verbs, and plurals that are words, too."""
    for part in _KEPT:
        for row in lines_of(folder / f"{part}.exc"):
            form, word = row.split()[:2]
            if word in words[part]:
                yield part, form, word
    for verb in words["verb"]:
        yield from (("verb", form, verb) for form in forms(verb))
    for word in words["noun"]:
        for form in singulars(word):
            if form in words["noun"]:
                yield "noun", word, form


def forms(verb: str) -> tuple[str, ...]:
    """The regular forms of a verb; those that double a consonant are listed with the irregular."""
    if "_" in verb or re.fullmatch("..|[^aeiou]*[aeiou][^aeiouwxy]", verb):
        return ()
    stem = verb if re.search("(ee|oe|ye)$", verb) else verb.removesuffix("e")
    return f"{stem}ing", f"{verb.removesuffix('e')}ed"


def lines(found: Mapping[str, Sense], known: Mapping[str, str]) -> list[str]:
    """The senses that words have and what these are kinds of, each after its kinds."""
    members: dict[str, list[str]] = defaultdict(list)
    for word, key in known.items():
        members[key].append(word)
    place: dict[str, int] = {}
    done: list[str] = []

    def add(key: str) -> None:
        if key in place:
            return
        place[key] = -1  # two verbs of WordNet are kinds of each other
        for kind in found[key].kinds:
            add(kind)
        place[key] = len(done)
        kinds = ",".join(str(place[kind]) for kind in found[key].kinds if place[kind] >= 0)
        own = " ".join(members[key])
        first = " ".join(dict.fromkeys(map(key_of, found[key].words[:_FIRST])))
        done.append(f"{first}\t{kinds}\t{own}\n")

    for key in found:
        if key in members:
            add(key)
    return done


def main() -> None:
    options = arguments(__doc__, "contrastive/data/vocabularies")
    folder = debian("wordnet-base", options.packages) / "usr/share/wordnet"
    found = senses(folder)
    known = chosen(folder, found)
    written = lines(found, known)
    path = options.output / FILE
    with whole_file(path) as unfinished:
        unfinished.write_bytes(gzip.compress("".join(written).encode(), mtime=0))
    print(f"{path}: {len(known):,} words, {len(written):,} senses, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
