"""Sets of texts as others publish them: BEIR and NanoBEIR folders, MTEB's and STS's pairs.

All files may be ``.jsonl``, ``.tsv``, ``.csv`` or ``.parquet``, and all but the last one gzipped.
"""

import csv
import dataclasses
import gzip
import io
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contrastive.errors import DataError

SUFFIXES = (".jsonl", ".json", ".tsv", ".csv", ".txt", ".parquet")
Row = Mapping[str, Any]
# The names that columns have, the usual one first.
_FIRST = ("sentence1", "sent1", "query", "sentence_A", "text1", "anchor")
_SECOND = ("sentence2", "sent2", "positive", "sentence_B", "text2")
_SCORE = ("score", "similarity_score", "relatedness_score", "similarity")
_LABEL = ("label", "labels", "is_duplicate")
# sts-train.csv and its like: no header, a score in the fifth column, then the two sentences.
_STS_BENCHMARK = (4, 5, 6)


@dataclasses.dataclass(frozen=True)
class JudgedSet:
    """Queries, a corpus, and which of it is right for which query."""

    queries: Mapping[str, str]
    corpus: Mapping[str, str]
    judgements: Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class PairSet:
    """Pairs of texts with what people say of each: a score, a label, or only that it is one."""

    first: Sequence[str]
    second: Sequence[str]
    scores: Sequence[float]  # empty where the pairs are translations or positives


def read_judged(path: pathlib.Path, split: str | None = None) -> JudgedSet:
    """Reads a folder in BEIR's layout, or a file of pairs.

    A folder holds ``corpus.*`` (``_id``, ``title``, ``text``), ``queries.*`` (``_id``, ``text``)
    and ``qrels/SPLIT.*`` (``query-id``, ``corpus-id``, ``score``, or trec_eval's four columns).
    NanoBEIR's is the same with a folder of parquet files for each, and qrels without scores. The
    text of a passage is its title, a space and its text. Of a file of pairs (``query``,
    ``positive``, perhaps ``split``) the positives of the split are the corpus; equal texts count
    once.

    Args:
      path: The folder or the file.
      split: Which judgements; None: ``test``, else ``dev`` or ``validation``, else the only ones.

    Raises:
      DataError: Something is missing, empty, or has none of the names above; it says what.
    """
    if path.is_file():
        return _judged_from_pairs(path, split)
    corpus = dict(_texts(_find(path, "corpus")))
    queries = dict(_texts(_find(path, "queries")))
    file = _find_judgements(path, split)
    judgements: dict[str, dict[str, float]] = {}
    for number, row in enumerate(_rows(file), 1):
        query = _value(row, ("query-id", "query_id", "qid"), file, number)
        item = _value(row, ("corpus-id", "corpus_id", "docid", "pid"), file, number)
        score = next((row[name] for name in ("score", "relevance") if name in row), 1)
        judgements.setdefault(str(query), {})[str(item)] = _number(score, file, number)
    if not judgements:
        raise DataError(f"{file} judges nothing.")
    return JudgedSet({name: queries[name] for name in queries if name in judgements} or queries,
                     corpus, judgements)  # fmt: skip


def _judged_from_pairs(path: pathlib.Path, split: str | None) -> JudgedSet:
    rows = list(_rows(path))
    splits = {str(row["split"]) for row in rows if "split" in row}
    if splits:
        wanted = split or next((x for x in ("test", "dev", "validation") if x in splits), None)
        if wanted not in splits:
            raise DataError(f"{path} has no split {wanted!r}, only {', '.join(sorted(splits))}.")
        rows = [row for row in rows if row["split"] == wanted]
    queries: dict[str, str] = {}
    corpus: dict[str, str] = {}
    judgements: dict[str, dict[str, float]] = {}
    for number, row in enumerate(rows, 1):
        query = str(_value(row, _FIRST, path, number))
        positive = str(_value(row, _SECOND, path, number))
        one = queries.setdefault(query, f"q{len(queries)}")
        other = corpus.setdefault(positive, f"d{len(corpus)}")
        judgements.setdefault(one, {})[other] = 1.0
    return JudgedSet(
        {name: text for text, name in queries.items()},
        {name: text for text, name in corpus.items()},
        judgements,
    )


def read_pairs(path: pathlib.Path, what: str | None = "score") -> PairSet:
    """Reads pairs of texts with their scores or labels.

    MTEB's columns (``sentence1``, ``sentence2``, ``score`` or ``label``; ``labels`` of lists, a set
    a row), STS benchmark's and SICK's files, SemEval's two (``STS.input.NAME.txt`` beside
    ``STS.gs.NAME.txt``), and this project's (``query``, ``positive``, ``score``).

    Args:
      path: The file.
      what: ``score`` or ``label``; None: neither is needed.

    Raises:
      DataError: There is no such file, it is empty, or a row has no texts or no number.
    """
    if path.name.startswith("STS.input."):
        return _read_semeval(path)
    names = {"score": _SCORE, "label": _LABEL, None: ()}[what]
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for number, row in enumerate(_rows(path, headless=True), 1):
        if isinstance(row, list):
            if len(row) <= max(_STS_BENCHMARK) or what == "label":
                raise DataError(
                    f"{path}, row {number}: {len(row)} columns without a header; expected are the "
                    f"columns {', '.join((_FIRST[0], _SECOND[0], *names[:1]))}."
                )
            score, one, other = (row[i] for i in _STS_BENCHMARK)
        else:
            one, other = (_value(row, x, path, number) for x in (_FIRST, _SECOND))
            score = _value(row, names, path, number) if names else None
        if isinstance(one, list):  # older files of MTEB: all pairs in one row
            first += one
            second += other
            scores += [] if score is None else [_number(x, path, number) for x in score]
            continue
        first.append(str(one))
        second.append(str(other))
        if score is not None:
            scores.append(_number(score, path, number))
    if not first:
        raise DataError(f"{path} holds no pairs.")
    return PairSet(first, second, scores)


def _read_semeval(path: pathlib.Path) -> PairSet:
    gold = path.with_name(path.name.replace("STS.input.", "STS.gs.", 1))
    if not gold.is_file():
        raise DataError(f"{path} needs the scores beside it: there is no {gold}.")
    lines = [line.split("\t") for line in _read_text(path).splitlines() if line.strip()]
    scores = _read_text(gold).splitlines()
    if len(lines) != len(scores):
        raise DataError(f"{path} has {len(lines)} pairs and {gold} {len(scores)} scores.")
    kept = [(line, float(x)) for line, x in zip(lines, scores, strict=True) if x.strip()]
    return PairSet([x[0] for x, _ in kept], [x[1] for x, _ in kept], [x for _, x in kept])


def _find(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A file, gzipped or not, or a folder of parquet files."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}.")
    for suffix in SUFFIXES:
        for end in ("", ".gz"):
            if (found := folder / f"{name}{suffix}{end}").is_file():
                return found
    if (inner := folder / name).is_dir() and list(inner.glob("*.parquet")):
        return inner
    raise DataError(
        f"{folder} has no {name}.jsonl (nor another of {', '.join(SUFFIXES)}): a folder in BEIR's "
        "layout has corpus.jsonl, queries.jsonl and qrels/test.tsv."
    )


def _find_judgements(folder: pathlib.Path, split: str | None) -> pathlib.Path:
    qrels = folder / "qrels"
    if not qrels.is_dir():
        return _find(folder, "qrels")
    if list(qrels.glob("*.parquet")) and not list(qrels.glob("*.tsv")):
        return qrels
    found = {path.name.split(".")[0]: path for path in sorted(qrels.iterdir()) if path.is_file()}
    if split is None:
        split = next((x for x in ("test", "dev", "validation") if x in found), None)
        split = next(iter(found)) if split is None and len(found) == 1 else split
    if split not in found:
        raise DataError(f"{qrels} has no split {split!r}, only {', '.join(found) or 'nothing'}.")
    return found[split]


def _texts(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Name and text of each row."""
    count = 0
    for number, row in enumerate(_rows(path), 1):
        name = str(_value(row, ("_id", "id", "query-id", "corpus-id"), path, number))
        title = str(row.get("title") or "").strip()
        text = str(_value(row, ("text", "query", "passage"), path, number)).strip()
        yield name, f"{title} {text}".strip()
        count += 1
    if not count:
        raise DataError(f"{path} is empty.")


def _rows(path: pathlib.Path, *, headless: bool = False) -> Iterator[Any]:
    """The rows of a file: mappings, or lists where a table of text has no header."""
    if not path.exists():
        raise DataError(f"there is no {path}.")
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if path.is_dir() or kind == "parquet":
        import pyarrow.parquet as pq

        for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
            yield from pq.read_table(file).to_pylist()
        return
    text = _read_text(path)
    if kind in ("jsonl", "json"):
        yield from _json_rows(path, text)
    elif kind in ("tsv", "csv", "txt"):
        yield from _table_rows(path, text, headless=headless)
    else:
        raise DataError(f"{path} is none of {', '.join(SUFFIXES)}.")


def _read_text(path: pathlib.Path) -> str:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.name.endswith(".gz") else data
    return data.decode("utf-8-sig", "replace")


def _json_rows(path: pathlib.Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number} is not an object with names.")
        yield row


def _table_rows(path: pathlib.Path, text: str, *, headless: bool) -> Iterator[Any]:
    """Rows by the names in the header; trec_eval's qrels and STS benchmark have none."""
    lines = text.splitlines()
    if not lines:
        return
    tabs = "\t" in lines[0]
    if tabs:  # sentences hold quotes that are no quoting
        cells = [line.split("\t") for line in lines]
    elif "," in lines[0]:
        cells = list(csv.reader(io.StringIO(text)))
    else:
        cells = [line.split() for line in lines]
    header = [name.strip() for name in cells[0]]
    known = {*_FIRST, *_SECOND, "query-id", "query_id", "_id", "id", "qid"}
    if known & set(header):
        for number, row in enumerate(cells[1:], 2):
            if len(row) < len(header):
                if not any(row):
                    continue
                raise DataError(f"{path}, line {number}: {len(row)} of {len(header)} columns.")
            yield dict(zip(header, row, strict=False))
        return
    if headless:
        yield from cells
        return
    for number, row in enumerate(cells, 1):
        if len(row) != 4:
            raise DataError(
                f"{path}, line {number} has neither the header query-id, corpus-id, score nor the "
                "four columns of trec_eval."
            )
        yield {"query-id": row[0], "corpus-id": row[2], "score": row[3]}


def _value(row: Row, names: Sequence[str], path: pathlib.Path, number: int) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(
        f"{path}, row {number} has none of the columns {', '.join(names)}, only {', '.join(row)}."
    )


def _number(value: Any, path: pathlib.Path, number: int) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(f"{path}, row {number}: {value!r} is no number.") from None
