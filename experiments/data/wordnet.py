"""WordNet 3.0 as pairs of texts: the words of a sense and its definition.

    python -m experiments.data.wordnet --output=data/wordnet
    contrastive data stats --config=... --config.data.source=data/wordnet/pairs.jsonl \\
        --config.data.pairs=texts --config.data.negatives=2

Negatives of a pair are the definitions of the other senses of its words: what the words also mean,
but not here. 2,000 senses are ``validation``. ``examples.jsonl`` has the sentences of a sense, each
with its definition: a harder set, since they share hardly a word. ``relations.jsonl`` has labelled
pairs (similar, opposite, unrelated), ``triplets.jsonl`` the same relations as a similar word and
wrong ones, and ``antonyms.jsonl`` those whose wrong words are opposites
(:mod:`experiments.data.wordnet_relations`).

Licence: WordNet 3.0, copyright 2006 by Princeton University, free for any use with its notice,
which is written beside the pairs (Debian's package wordnet-base, from which they come, has it).
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.data.packages import arguments, debian, held_out, write_rows
from experiments.data.wordnet_relations import Relations, labelled, lines_of, links, triplets

HELD_OUT = 2000
MOST_NEGATIVES = 8


class Sense(NamedTuple):
    """One meaning: its key, its words, what they mean and how they are used."""

    key: str
    words: list[str]
    definition: str
    examples: list[str]


def senses(folder: Path) -> Iterator[Sense]:
    """The senses of all parts of speech, in the order of the files."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in lines_of(folder / f"data.{part}"):
            head, gloss = line.split(" | ", 1)
            cells = head.split(" ")
            words = [cells[4 + 2 * i] for i in range(int(cells[3], 16))]
            words = [word.partition("(")[0].replace("_", " ") for word in words]
            definition, *examples = [x.strip().rstrip('";') for x in gloss.split('; "')]
            yield Sense(f"{part}.{cells[0]}", words, definition, examples)


def notice(folder: Path) -> str:
    """The licence at the head of every file."""
    with open(folder / "data.noun", encoding="utf-8") as file:
        lines = [line for line in file if line.startswith("  ")]
    return "".join(line.strip().partition(" ")[2].strip() + "\n" for line in lines)


def main() -> None:
    options = arguments(__doc__, "data/wordnet")
    folder = debian("wordnet-base", options.packages) / "usr/share/wordnet"
    found = list(senses(folder))
    meanings: dict[str, list[Sense]] = defaultdict(list)
    for sense in found:
        for word in sense.words:
            meanings[word.lower()].append(sense)
    out = held_out((sense.key for sense in found), HELD_OUT)
    pairs, sentences = [], []
    for sense in found:
        others = [s for word in sense.words for s in meanings[word.lower()] if s.key != sense.key]
        negatives = list(dict.fromkeys(s.definition for s in others))[:MOST_NEGATIVES]
        split = "validation" if sense.key in out else "train"
        row = {"key": sense.key, "query": ", ".join(sense.words), "positive": sense.definition}
        pairs.append({**row, "negatives": negatives, "split": split})
        sentences += [
            {"key": f"{sense.key}.{i}", "query": text, "positive": sense.definition, "split": split}
            for i, text in enumerate(sense.examples)
        ]
    write_rows(options.output / "pairs.jsonl", pairs)
    write_rows(options.output / "examples.jsonl", sentences)
    relations = Relations({sense.key: sense.words for sense in found}, links(folder))
    definitions = {sense.key: sense.definition for sense in found}
    write_rows(options.output / "relations.jsonl", labelled(relations, definitions))
    write_rows(options.output / "triplets.jsonl", triplets(relations, definitions))
    antonyms = triplets(relations, definitions, unrelated=0)
    write_rows(options.output / "antonyms.jsonl", antonyms)
    (options.output / "LICENSE").write_text(notice(folder))


if __name__ == "__main__":
    main()
