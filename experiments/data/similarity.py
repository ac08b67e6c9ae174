"""SimLex-999, WordSim-353 and Lee: pairs of texts with the similarity that people see.

    python -m experiments.data.similarity --output=data/similarity

Each file has a pair a row, ``query``, ``positive`` (the other text, whether it is similar or not)
and ``score``: they are to measure a model, not to train one. SimLex-999 and WordSim-353 score words
from 0 to 10 (similarity in meaning; relatedness), Lee's 50 short news texts, each two of them, from
0 to 1.

Licence: the files are among the tests in the wheel of gensim (LGPL-2.1), which says nothing of the
sets' own licences; their authors published them for research. Measure with them, cite them, do not
pass them on: Hill, Reichart, Korhonen: SimLex-999, 2015. Finkelstein et al.: Placing search in
context, 2002. Lee, Pincombe, Welsh: An empirical evaluation of models of text document similarity,
2005.
"""

import itertools
import zipfile

from experiments.data.packages import arguments, wheel, write_rows

GENSIM = "gensim==4.4.0"
FOLDER = "gensim/test/test_data/"


def word_pairs(archive: zipfile.ZipFile, name: str) -> list[dict[str, object]]:
    """Word, word and score of a file of tabs; lines with ``#`` say what it is."""
    text = archive.read(FOLDER + name).decode("utf-8")
    rows = [line.split("\t") for line in text.splitlines() if line and not line.startswith("#")]
    return [{"query": a, "positive": b, "score": float(score)} for a, b, score in rows]


def document_pairs(archive: zipfile.ZipFile) -> list[dict[str, object]]:
    """Each two of Lee's documents and their mean similarity."""
    documents = archive.read(FOLDER + "lee.cor").decode("utf-8", "replace").splitlines()
    matrix = [
        [float(cell) for cell in line.split()]
        for line in archive.read(FOLDER + "similarities0-1.txt").decode().splitlines()
    ]
    return [
        {"query": documents[i], "positive": documents[j], "score": matrix[i][j]}
        for i, j in itertools.combinations(range(len(documents)), 2)
    ]


def main() -> None:
    options = arguments(__doc__, "data/similarity")
    archive = wheel(GENSIM, options.packages)
    write_rows(options.output / "simlex999.jsonl", word_pairs(archive, "simlex999.txt"))
    write_rows(options.output / "wordsim353.jsonl", word_pairs(archive, "wordsim353.tsv"))
    write_rows(options.output / "lee.jsonl", document_pairs(archive))


if __name__ == "__main__":
    main()
